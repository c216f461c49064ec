#include <stdexcept>

#include "tests/tools/replay/backend.h"

#ifdef LIMBO_REPLAY_WITH_TORCH
#include <ATen/Context.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <vector>
#endif

namespace limbo::replay {

#ifdef LIMBO_REPLAY_WITH_TORCH
namespace {

namespace native = c10::cuda::CUDACachingAllocator;

class NativeBackend final : public Backend {
 public:
  NativeBackend() {
    const int count = c10::cuda::device_count();
    if (count == 0) throw std::runtime_error("There is no CUDA device for --backend native.");
    // Not the allocator alone: c10 asks torch_cuda which devices have a context.
    at::globalContext().lazyInitDevice(at::kCUDA);
    begin_thread();
  }

  // By the runtime, not by c10: c10 leaves the context of device 0 out, and then every call that asks
  // for the current device takes some 1,000 ns longer.
  void begin_thread() override { C10_CUDA_CHECK(cudaSetDevice(0)); }

  void start(std::size_t limit_bytes) override {
    native::emptyCache();
    const auto total_bytes = native::get()->getMemoryInfo(0).second;
    // Half a byte more, so that the product that torch makes of it is not one byte less.
    const double fraction =
        (static_cast<double>(limit_bytes) + 0.5) / static_cast<double>(total_bytes);
    native::setMemoryFraction(limit_bytes == 0 ? 1.0 : std::min(fraction, 1.0), 0);
    native::resetPeakStats(0);
  }

  void* stream(std::size_t index) override {
    if (streams_.empty()) streams_.push_back(nullptr);
    while (streams_.size() <= index) {
      cudaStream_t made = nullptr;
      C10_CUDA_CHECK(cudaStreamCreateWithFlags(&made, cudaStreamNonBlocking));
      streams_.push_back(made);
    }
    return streams_[index];
  }

  bool allocate(std::size_t size_bytes, void* stream, void** block) override {
    try {
      *block = native::raw_alloc_with_stream(size_bytes, static_cast<cudaStream_t>(stream));
      return true;
    } catch (const c10::OutOfMemoryError&) {
      return false;
    }
  }

  void free(void* block) override { native::raw_delete(block); }

  std::size_t peak_reserved_bytes() override {
    using c10::CachingAllocator::StatType;
    return static_cast<std::size_t>(
        native::getDeviceStats(0)
            .reserved_bytes[static_cast<std::size_t>(StatType::AGGREGATE)]
            .peak);
  }

 private:
  std::vector<cudaStream_t> streams_;
};

}  // namespace

std::unique_ptr<Backend> make_native_backend() {
  return std::make_unique<NativeBackend>();
}
#else
std::unique_ptr<Backend> make_native_backend() {
  throw std::runtime_error(
      "This limbo_replay was built without torch, so there is no --backend native in it. Configure "
      "with -DLIMBO_BUILD_TORCH=ON.");
}
#endif

}  // namespace limbo::replay
