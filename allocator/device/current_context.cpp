#include "allocator/device/current_context.h"

#include <string>

#include "allocator/device/driver_entry_points.h"

namespace limbo {

thread_local constinit bool context_was_seen_to __attribute__((tls_model("initial-exec"))) = false;

int current_context_device() noexcept {
#ifdef LIMBO_HAVE_CUDA
  static const auto ask = [] {
    std::string why;
    const DriverEntryPoints* driver = driver_entry_points(why);
    return driver == nullptr ? nullptr : driver->cuCtxGetDevice;
  }();
  CUdevice device = -1;
  if (ask != nullptr && ask(&device) == CUDA_SUCCESS) return device;
#endif
  return -1;
}

}  // namespace limbo
