#include "hooks/capi.h"

#include <chrono>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "allocator/capture_gate.h"
#include "allocator/device/device.h"
#include "allocator/error.h"
#include "allocator/options.h"
#include "hooks/error_text.h"
#include "hooks/install.h"
#include "hooks/numbers_json.h"
#include "hooks/preconditions.h"
#include "hooks/process.h"
#include "hooks/version.h"
#include "ipc/exit.h"

namespace {

struct LastError {
  int code = 0;
  std::string text;
};

LastError& last_error() {
  static thread_local LastError error;
  return error;
}

int remember_failure() noexcept {
  limbo::ErrorReport report = limbo::current_exception_report();
  last_error() = {static_cast<int>(report.code), std::move(report.text)};
  return last_error().code;
}

template <typename Call>
int code_of(Call&& call) noexcept {
  try {
    std::forward<Call>(call)();
    return 0;
  } catch (...) {
    return remember_failure();
  }
}

[[noreturn]] void refuse_unnamed_option() {
  throw limbo::Error(limbo::ErrorCode::kBadArgument, "No option was named.");
}

// `kept` is the calling thread's buffer of the one function that asks.
template <typename Make>
const char* text_of(std::string& kept, Make&& make) noexcept {
  try {
    kept = std::forward<Make>(make)();
    return kept.c_str();
  } catch (...) {
    remember_failure();
    return nullptr;
  }
}

}  // namespace

extern "C" {

int limbo_last_error_code(void) {
  return last_error().code;
}

const char* limbo_last_error(void) {
  return last_error().text.c_str();
}

const char* limbo_error_name(int code) {
  constexpr int kLast = static_cast<int>(limbo::ErrorCode::kInternal);
  if (code < 0 || code > kLast) code = 0;  // no error's number
  // Every name is a literal, and so ends with a zero.
  return limbo::error_code_name(static_cast<limbo::ErrorCode>(code)).data();
}

const char* limbo_version(void) {
  return limbo::kVersion.data();
}

const char* limbo_torch_built_for(void) {
  static thread_local std::string kept;
  return text_of(kept, limbo::torch_built_for);
}

const char* limbo_torch_running_under(void) {
  static thread_local std::string kept;
  return text_of(kept, limbo::torch_running_under);
}

int limbo_torch_usable(void) {
  return code_of(limbo::require_usable);
}

int limbo_torch_install(void) {
  return code_of(limbo::install);
}

int limbo_torch_enable(const char* const* names, const int64_t* values, int count) {
  return code_of([&] {
    std::vector<limbo::OptionSetting> settings;
    for (int index = 0; index < count; ++index) {
      if (names[index] == nullptr) refuse_unnamed_option();
      settings.push_back({names[index], values[index]});
    }
    const std::vector<limbo::OptionSetting> before = limbo::set_options(settings);
    try {
      limbo::install();
    } catch (...) {
      limbo::restore_options(before);
      throw;
    }
  });
}

int limbo_torch_installed(void) {
  return limbo::installed() ? 1 : 0;
}

int limbo_torch_make_allocator(void) {
  return code_of(limbo::begin_making_allocator);
}

int limbo_torch_restore_allocator(void) {
  return code_of(limbo::end_making_allocator);
}

int limbo_set_option(const char* name, int64_t value) {
  return code_of([&] {
    if (name == nullptr) refuse_unnamed_option();
    limbo::set_option(name, value);
  });
}

const char* limbo_options_json(void) {
  static thread_local std::string kept;
  return text_of(kept, limbo::options_json);
}

const char* limbo_device_name(void) {
  static thread_local std::string kept;
  return text_of(kept, [] {
    if (limbo::simulated()) return std::string("simulated");
    std::string why;
    if (!limbo::cuda_available(&why)) {
      throw limbo::Error(limbo::ErrorCode::kDeviceError, "CUDA cannot be used here: " + why + ".",
                         "LIMBO_DEVICE=simulated chooses the simulated device.");
    }
    return std::string("cuda");
  });
}

const char* limbo_incarnation(void) {
  static thread_local std::string kept;
  return text_of(kept,
                 [] { return limbo::incarnation_text(limbo::sharing_in_use().incarnation()); });
}

const char* limbo_holders_json(void) {
  static thread_local std::string kept;
  return text_of(kept, [] { return limbo::holders_json(); });
}

const char* limbo_stats_json(void) {
  static thread_local std::string kept;
  return text_of(kept, limbo::stats_json);
}

const char* limbo_devices_json(void) {
  static thread_local std::string kept;
  return text_of(kept, limbo::devices_json);
}

const char* limbo_probes_json(int device) {
  static thread_local std::string kept;
  return text_of(kept, [&] { return limbo::probes_json(device); });
}

int limbo_reap(int force, int64_t* leases, int64_t* claims) {
  return code_of([&] {
    limbo::Reaped reaped;
    if (limbo::in_use()) reaped = limbo::sharing_in_use().reap(force != 0);
    if (leases != nullptr) *leases = static_cast<int64_t>(reaped.leases);
    if (claims != nullptr) *claims = static_cast<int64_t>(reaped.claims);
  });
}

int limbo_drain(int64_t at_most_ms, int* drained) {
  return code_of([&] {
    if (at_most_ms < 0) {
      throw limbo::Error(
          limbo::ErrorCode::kBadArgument,
          "at_most_ms is " + std::to_string(at_most_ms) + "; it cannot be negative.");
    }
    bool reached = true;
    if (limbo::in_use() && !limbo::in_forked_child()) {
      reached = limbo::sharing_in_use().drain(std::chrono::milliseconds(at_most_ms));
    }
    if (drained != nullptr) *drained = reached ? 1 : 0;
  });
}

int limbo_drain_before_exit(void) {
  return code_of([] {
    if (limbo::in_use() && !limbo::in_forked_child()) limbo::drain_before_exit();
  });
}

int limbo_keep_for_graph(int device, void* stream, int* kept) {
  return code_of([&] {
    bool captured = false;
    if (limbo::in_use() && !limbo::in_forked_child()) {
      captured = limbo::sharing_in_use().keep_for_graph({device, stream});
    }
    if (kept != nullptr) *kept = captured ? 1 : 0;
  });
}

int limbo_announce_capture(int device, void* stream, uint64_t* announcement) {
  return code_of([&] {
    if (announcement == nullptr) {
      throw limbo::Error(limbo::ErrorCode::kBadArgument, "announcement is null.",
                         "Pass the address of a number; the withdrawal needs it.");
    }
    *announcement = limbo::capture_gate::announce({device, stream});
  });
}

int limbo_withdraw_capture(uint64_t announcement) {
  return code_of([&] { limbo::capture_gate::withdraw(announcement); });
}

}  // extern "C"
