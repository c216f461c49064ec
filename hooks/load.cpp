// What happens when the library is loaded: operators, checks, the collector and a listener for
// torch's initialisation of CUDA are registered, nothing else. No device is touched and no thread
// started. Under another minor version of torch, or beside another copy of the library, nothing is
// registered; limbo_torch_usable then says why.
#include <cstdio>

#include "hooks/callbacks.h"
#include "hooks/error_text.h"
#include "hooks/operator_checks.h"
#include "hooks/operators.h"
#include "hooks/preconditions.h"
#include "hooks/process.h"
#include "hooks/settings.h"
#include "hooks/sim_tensors.h"
#include "hooks/stock_loading.h"
#include "hooks/version.h"

namespace limbo {
namespace {

bool load() noexcept {
  try {
    if (!same_minor_version(torch_running_under(), kTorchMajor, kTorchMinor)) return false;
    if (!register_collector() || !register_operators()) {
      note_second_copy();
      return false;
    }
    register_operator_checks();
    follow_later_settings();
    follow_initialization();
    if (simulated()) install_simulated_guard();
    return true;
  } catch (...) {
    // An exception would end the process that only wanted to load a library.
    std::fprintf(stderr, "limbo: loading failed: %s\n", current_exception_report().text.c_str());
    return false;
  }
}

[[maybe_unused]] const bool loaded = load();

}  // namespace
}  // namespace limbo
