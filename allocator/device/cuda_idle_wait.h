// Waiting until a GPU is idle.
//
// cuCtxSynchronize ends every capture in the context, whatever the thread's capture mode (measured).
// To give memory back the driver waits for the device as well, and lets captures be. So some memory
// is taken and given back. Where the device is full none can be taken: for that a little is kept from
// the device's first use on, given back to wait, and taken again.
#pragma once

#ifdef LIMBO_HAVE_CUDA

#include <memory>
#include <mutex>

#include "allocator/device/cuda_contexts.h"

namespace limbo {

// One per CUDA device object. What is kept goes with the process, as the contexts do: in an exit
// nothing is to be done, and in a fork child it is the parent's.
class CudaIdleWait {
 public:
  explicit CudaIdleWait(CudaContexts& contexts) noexcept : contexts_(contexts) {}

  // Keeps what the wait for the device needs when that is full; where there is no room, the next call
  // tries again. Waits for nothing. A call scope of the device must be open, here and below.
  void prepare(int device) noexcept;

  // Waits until what this process had queued on the device is done. Throws kDeviceError; also where
  // the device is full and nothing is kept: it was full from the start, or another allocation was
  // quicker to have what an earlier wait had given back.
  void wait(int device);

 private:
  struct Kept {
    std::mutex mutex;  // guards memory; held while the device is waited for, by who waits alone
    CUdeviceptr memory = 0;
  };

  [[nodiscard]] Kept& kept(int device);
  void take(Kept& kept) noexcept;

  CudaContexts& contexts_;
  std::once_flag made_;
  std::unique_ptr<Kept[]> kept_;  // by device
};

}  // namespace limbo

#endif
