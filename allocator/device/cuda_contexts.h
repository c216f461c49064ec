// The primary contexts of the GPUs, and the scope in which every driver call is made.
#pragma once

#ifdef LIMBO_HAVE_CUDA

#include <atomic>
#include <cstddef>
#include <memory>
#include <mutex>

#include "allocator/device/driver_entry_points.h"

namespace limbo {

// One per CUDA device object. The driver is initialised at the first call of `count` or `context`,
// a GPU's primary context (the one that the CUDA runtime, and so PyTorch, uses) is retained at the
// first call that needs it, and none is ever released: memory may be freed until the process ends.
class CudaContexts {
 public:
  explicit CudaContexts(const DriverEntryPoints& driver) noexcept : driver_(driver) {}

  [[nodiscard]] const DriverEntryPoints& driver() const noexcept { return driver_; }

  // Initialises the driver. Throws kDeviceError when it refuses; no visible GPU is no error.
  [[nodiscard]] int count();

  // Throws kDeviceError for a device that does not exist.
  [[nodiscard]] CUdevice handle(int device);
  [[nodiscard]] CUcontext context(int device);

  // Whether the device has a primary context, whoever made it; also true where even that question meets
  // a lost one. Makes none. Throws as `handle` does.
  [[nodiscard]] bool has_context(int device);

  // Whether the device's context answers everything with an error, as it does for ever after an
  // illegal access. Asks a stream of its own, which never has work: the error is reported to every
  // stream, if not to whoever would enter the context, which others may have made. False where there
  // is no context yet, whoever would have made it.
  [[nodiscard]] bool lost(int device) noexcept;

 private:
  struct Entry {
    CUdevice handle = 0;
    std::once_flag retained;
    std::atomic<CUcontext> context{nullptr};
    std::atomic<bool> lost{false};  // once and for all
    std::mutex asking;              // guards the making of asked
    std::atomic<CUstream> asked{nullptr};
  };

  void initialise();
  [[nodiscard]] Entry& entry(int device);
  [[nodiscard]] CUresult ask(int device, Entry& entry);

  const DriverEntryPoints& driver_;
  std::once_flag initialised_;  // guards count_ and entries_
  int count_ = 0;
  std::unique_ptr<Entry[]> entries_;
};

// While it lives, `device`'s primary context is current in this thread and the thread is in relaxed
// capture mode; both are put back at its end.
class CudaCallScope {
 public:
  CudaCallScope(CudaContexts& contexts, int device);
  ~CudaCallScope();
  CudaCallScope(const CudaCallScope&) = delete;
  CudaCallScope& operator=(const CudaCallScope&) = delete;

 private:
  const DriverEntryPoints& driver_;
  bool pushed_ = false;
  CUstreamCaptureMode capture_mode_ = CU_STREAM_CAPTURE_MODE_RELAXED;
};

}  // namespace limbo

#endif
