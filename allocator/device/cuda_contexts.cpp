#include "allocator/device/cuda_contexts.h"

#ifdef LIMBO_HAVE_CUDA

#include <optional>
#include <string>

#include "allocator/device/driver_start.h"
#include "allocator/error.h"

namespace limbo {

void CudaContexts::initialise() {
  std::call_once(initialised_, [this] {
    const CUresult result = driver_.cuInit(0);
    if (result == CUDA_ERROR_NO_DEVICE) return;
    if (result != CUDA_SUCCESS) {
      throw Error(ErrorCode::kDeviceError, describe_driver_error(driver_, "cuInit", result) + ".",
                  "nvidia-smi tells whether the driver works; a process that was forked from one "
                  "that had used CUDA cannot use it.");
    }
    int count = 0;
    check_driver(driver_, "cuDeviceGetCount", driver_.cuDeviceGetCount(&count));
    auto entries = std::make_unique<Entry[]>(static_cast<std::size_t>(count));
    for (int i = 0; i < count; ++i) {
      check_driver(driver_, "cuDeviceGet",
                   driver_.cuDeviceGet(&entries[static_cast<std::size_t>(i)].handle, i));
    }
    entries_ = std::move(entries);
    count_ = count;
    tell_driver_start();
  });
}

int CudaContexts::count() {
  initialise();
  return count_;
}

CudaContexts::Entry& CudaContexts::entry(int device) {
  initialise();
  if (device < 0 || device >= count_) {
    throw Error(ErrorCode::kDeviceError, "There is no CUDA device " + std::to_string(device) + ".",
                count_ == 0 ? std::string("No GPU is visible to this process.")
                            : "The devices are 0 to " + std::to_string(count_ - 1) + ".");
  }
  return entries_[static_cast<std::size_t>(device)];
}

CUdevice CudaContexts::handle(int device) {
  return entry(device).handle;
}

CUcontext CudaContexts::context(int device) {
  Entry& found = entry(device);
  const CUcontext context = found.context.load(std::memory_order_acquire);
  if (context != nullptr) return context;
  std::call_once(found.retained, [&] {
    CUcontext made = nullptr;
    check_driver(driver_, "cuDevicePrimaryCtxRetain",
                 driver_.cuDevicePrimaryCtxRetain(&made, found.handle));
    found.context.store(made, std::memory_order_release);
    tell_driver_start();
  });
  return found.context.load(std::memory_order_acquire);
}

bool CudaContexts::has_context(int device) {
  const Entry& found = entry(device);
  if (found.context.load(std::memory_order_acquire) != nullptr) return true;
  unsigned flags = 0;
  int active = 0;
  const CUresult asked = driver_.cuDevicePrimaryCtxGetState(found.handle, &flags, &active);
  return is_sticky(asked) || active != 0;
}

CUresult CudaContexts::ask(int device, Entry& entry) {
  std::optional<CudaCallScope> scope;
  try {
    scope.emplace(*this, device);
  } catch (const DriverError& refused) {
    return refused.result();  // a lost context may say so to whoever would enter it
  }
  CUstream asked = entry.asked.load(std::memory_order_acquire);
  if (asked == nullptr) {
    const std::lock_guard lock(entry.asking);
    asked = entry.asked.load(std::memory_order_relaxed);
    if (asked == nullptr) {
      const CUresult made = driver_.cuStreamCreate(&asked, CU_STREAM_NON_BLOCKING);
      if (made != CUDA_SUCCESS) return made;
      entry.asked.store(asked, std::memory_order_release);
    }
  }
  return driver_.cuStreamQuery(asked);
}

bool CudaContexts::lost(int device) noexcept {
  try {
    Entry& found = entry(device);
    if (found.lost.load(std::memory_order_relaxed)) return true;
    if (!has_context(device)) return false;  // nobody has used it
    if (!is_sticky(ask(device, found))) return false;
    found.lost.store(true, std::memory_order_relaxed);
    return true;
  } catch (const std::exception&) {
    return false;  // it cannot be asked: its calls say themselves what they meet
  }
}

CudaCallScope::CudaCallScope(CudaContexts& contexts, int device) : driver_(contexts.driver()) {
  const CUcontext wanted = contexts.context(device);
  CUcontext current = nullptr;
  check_driver(driver_, "cuCtxGetCurrent", driver_.cuCtxGetCurrent(&current));
  if (current != wanted) {
    check_driver(driver_, "cuCtxPushCurrent", driver_.cuCtxPushCurrent(wanted));
    pushed_ = true;
  }
  // An exchange: afterwards the variable holds the mode that the thread had.
  const CUresult result = driver_.cuThreadExchangeStreamCaptureMode(&capture_mode_);
  if (result != CUDA_SUCCESS) {
    CUcontext popped = nullptr;
    if (pushed_) driver_.cuCtxPopCurrent(&popped);
    check_driver(driver_, "cuThreadExchangeStreamCaptureMode", result);
  }
}

CudaCallScope::~CudaCallScope() {
  driver_.cuThreadExchangeStreamCaptureMode(&capture_mode_);
  CUcontext popped = nullptr;
  if (pushed_) driver_.cuCtxPopCurrent(&popped);
}

}  // namespace limbo

#endif
