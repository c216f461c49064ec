#include "allocator/device/cuda_idle_wait.h"

#ifdef LIMBO_HAVE_CUDA

#include <cstddef>
#include <string>
#include <utility>

#include "allocator/error.h"

namespace limbo {
namespace {

// Smaller memory shares a driver's allocation with other such memory, and need not be given back.
constexpr std::size_t kTakenBytes = std::size_t{2} << 20;

}  // namespace

CudaIdleWait::Kept& CudaIdleWait::kept(int device) {
  std::call_once(made_, [this] {
    kept_ = std::make_unique<Kept[]>(static_cast<std::size_t>(contexts_.count()));
  });
  return kept_[static_cast<std::size_t>(device)];
}

void CudaIdleWait::take(Kept& kept) noexcept {
  CUdeviceptr memory = 0;
  if (contexts_.driver().cuMemAlloc(&memory, kTakenBytes) == CUDA_SUCCESS) kept.memory = memory;
}

void CudaIdleWait::prepare(int device) noexcept {
  try {
    Kept& here = kept(device);
    // Whoever has it locked waits for the device just now, and takes it again.
    const std::unique_lock lock(here.mutex, std::try_to_lock);
    if (lock.owns_lock() && here.memory == 0) take(here);
  } catch (const std::exception&) {
    // No host memory: as where the device has no room.
  }
}

void CudaIdleWait::wait(int device) {
  const DriverEntryPoints& driver = contexts_.driver();
  CUdeviceptr taken = 0;
  const CUresult made = driver.cuMemAlloc(&taken, kTakenBytes);
  if (made == CUDA_SUCCESS) {
    check_driver(driver, "cuMemFree", driver.cuMemFree(taken));
    prepare(device);
    return;
  }
  if (made != CUDA_ERROR_OUT_OF_MEMORY) check_driver(driver, "cuMemAlloc", made);
  Kept& here = kept(device);
  const std::lock_guard lock(here.mutex);
  if (here.memory == 0) {
    throw Error(ErrorCode::kDeviceError,
                "Device " + std::to_string(device) + " is full: not even the " +
                    std::to_string(kTakenBytes >> 20U) +
                    " MiB are left that are taken to wait until it is idle.",
                "Wait when some of its memory has been freed.");
  }
  check_driver(driver, "cuMemFree", driver.cuMemFree(std::exchange(here.memory, 0)));
  take(here);
}

}  // namespace limbo

#endif
