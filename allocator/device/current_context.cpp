#include "allocator/device/current_context.h"

#include <array>
#include <cstddef>
#include <string>

#include "allocator/device/driver_entry_points.h"

namespace limbo {
namespace {

int no_driver_yet(void** /*context*/) {
  return -1;
}

}  // namespace

thread_local constinit ThreadWordsOfContext words_of_context
    __attribute__((tls_model("initial-exec"))){};

constinit std::atomic<current_context_detail::GetCurrent> current_context_detail::get_current{
    no_driver_yet};

#ifdef LIMBO_HAVE_CUDA
namespace {

// By GPU. A context that somebody made besides the primary one may be destroyed, and another GPU's
// may get its handle: none of those is noted.
constinit std::array<std::atomic<CUcontext>, 64> primary_contexts{};

// The GPU whose noted context this is; -1: none.
int device_of_noted(CUcontext context) noexcept {
  for (std::size_t i = 0; i < primary_contexts.size(); ++i) {
    const CUcontext noted = primary_contexts[i].load(std::memory_order_relaxed);
    if (noted == context) return static_cast<int>(i);
  }
  return -1;
}

const DriverEntryPoints* the_driver() noexcept {
  static const DriverEntryPoints* const driver = [] {
    std::string why;
    const DriverEntryPoints* found = driver_entry_points(why);
    if (found != nullptr) {
      current_context_detail::get_current.store(
          reinterpret_cast<current_context_detail::GetCurrent>(found->cuCtxGetCurrent),
          std::memory_order_relaxed);
    }
    return found;
  }();
  return driver;
}

int device_count(const DriverEntryPoints& driver) noexcept {
  int count = 0;
  return driver.cuDeviceGetCount(&count) == CUDA_SUCCESS ? count : 0;
}

bool is_active(const DriverEntryPoints& driver, CUdevice handle) noexcept {
  unsigned flags = 0;
  int active = 0;
  return driver.cuDevicePrimaryCtxGetState(handle, &flags, &active) == CUDA_SUCCESS && active != 0;
}

// The GPU of the current context, by the driver; -1 where it does not say.
int device_of_current(const DriverEntryPoints& driver, CUdevice* handle) noexcept {
  if (driver.cuCtxGetDevice(handle) != CUDA_SUCCESS) return -1;
  const int count = device_count(driver);
  for (int i = 0; i < count; ++i) {
    CUdevice of_index = 0;
    if (driver.cuDeviceGet(&of_index, i) == CUDA_SUCCESS && of_index == *handle) return i;
  }
  return -1;
}

// Whether the context is the primary one of its GPU, which is noted then, and kept.
bool note_if_primary(const DriverEntryPoints& driver, CUcontext context, CUdevice handle,
                     int device) noexcept {
  const auto index = static_cast<std::size_t>(device);
  if (index >= primary_contexts.size()) return false;
  if (primary_contexts[index].load(std::memory_order_relaxed) != nullptr) return false;  // another
  CUcontext primary = nullptr;
  if (!is_active(driver, handle)) return false;  // retaining it would make it
  if (driver.cuDevicePrimaryCtxRetain(&primary, handle) != CUDA_SUCCESS) return false;
  primary_contexts[index].store(primary, std::memory_order_relaxed);
  return primary == context;
}

}  // namespace

int current_context_detail::look_up() noexcept {
  const DriverEntryPoints* driver = the_driver();
  CUcontext context = nullptr;
  if (driver == nullptr || driver->cuCtxGetCurrent(&context) != CUDA_SUCCESS ||
      context == nullptr) {
    return -1;
  }
  int device = device_of_noted(context);
  if (device < 0) {
    CUdevice handle = 0;
    device = device_of_current(*driver, &handle);
    if (device < 0 || !note_if_primary(*driver, context, handle, device)) return device;
  }
  words_of_context.context = context;
  words_of_context.device = device;
  return device;
}

bool every_device_has_context() noexcept {
  const DriverEntryPoints* driver = the_driver();
  if (driver == nullptr) return false;
  const int count = device_count(*driver);
  for (int i = 0; i < count; ++i) {
    CUdevice handle = 0;
    if (driver->cuDeviceGet(&handle, i) != CUDA_SUCCESS || !is_active(*driver, handle))
      return false;
  }
  return count > 0;
}
#else
int current_context_detail::look_up() noexcept {
  return -1;
}

bool every_device_has_context() noexcept {
  return false;
}
#endif

}  // namespace limbo
