#include "allocator/device/current_context.h"

#include <string>

#include "allocator/device/driver_entry_points.h"

namespace limbo {

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
