// What tests on a GPU ask of the driver beside the device interface.
#pragma once

#ifdef LIMBO_HAVE_CUDA

#include <stdexcept>
#include <string>

#include "allocator/device/driver_entry_points.h"

namespace limbo::testing {

// The driver's function under its versioned name, typed by cuda.h:
//   const auto launch = LIMBO_DRIVER_FUNCTION(cuLaunchKernel);
#define LIMBO_TEST_SPELL(name) #name
#define LIMBO_TEST_VERSIONED(name) LIMBO_TEST_SPELL(name)
#define LIMBO_DRIVER_FUNCTION(name) \
  ::limbo::testing::driver_function<decltype(&::name)>(LIMBO_TEST_VERSIONED(name))

template <typename Function>
Function driver_function(const char* name) {
  void* symbol = find_driver_symbol(name);
  if (symbol == nullptr) throw std::runtime_error(std::string("the driver lacks ") + name);
  return reinterpret_cast<Function>(symbol);
}

// Throws std::runtime_error with the call's name and the driver's words.
inline void check_cuda(const char* call, CUresult result) {
  if (result == CUDA_SUCCESS) return;
  std::string why;
  const DriverEntryPoints* driver = driver_entry_points(why);
  throw std::runtime_error(driver != nullptr ? describe_driver_error(*driver, call, result) : why);
}

// Makes a GPU's primary context current while it lives. Retains it for good.
class CurrentContext {
 public:
  explicit CurrentContext(int device) {
    CUdevice handle = 0;
    CUcontext context = nullptr;
    check_cuda("cuInit", LIMBO_DRIVER_FUNCTION(cuInit)(0));
    check_cuda("cuDeviceGet", LIMBO_DRIVER_FUNCTION(cuDeviceGet)(&handle, device));
    check_cuda("cuDevicePrimaryCtxRetain",
               LIMBO_DRIVER_FUNCTION(cuDevicePrimaryCtxRetain)(&context, handle));
    check_cuda("cuCtxPushCurrent", LIMBO_DRIVER_FUNCTION(cuCtxPushCurrent)(context));
  }
  ~CurrentContext() {
    CUcontext popped = nullptr;
    LIMBO_DRIVER_FUNCTION(cuCtxPopCurrent)(&popped);
  }
  CurrentContext(const CurrentContext&) = delete;
  CurrentContext& operator=(const CurrentContext&) = delete;
};

}  // namespace limbo::testing

#endif
