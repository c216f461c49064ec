// Calls of the device never spoil a capture of the program's own.
#ifdef LIMBO_HAVE_CUDA

#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <cstddef>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/cuda_driver.h"
#include "tests/support/device_suite.h"
#include "tests/support/shared_words.h"

namespace limbo::testing {
namespace {

class CudaCapture : public DeviceSuite {
 protected:
  // Captures `stream`, runs `meanwhile` in another thread, and says how the capture ended.
  template <typename Meanwhile>
  CUresult capture_while(StreamRef stream, Meanwhile meanwhile,
                         CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_GLOBAL) {
    const CurrentContext current(0);
    const auto named = static_cast<CUstream>(stream.handle);
    check_cuda("cuStreamBeginCapture", LIMBO_DRIVER_FUNCTION(cuStreamBeginCapture)(named, mode));
    capturing_ = device().is_capturing(stream);
    std::thread other(meanwhile);
    other.join();
    CUgraph graph = nullptr;
    const CUresult result = LIMBO_DRIVER_FUNCTION(cuStreamEndCapture)(named, &graph);
    if (graph != nullptr) LIMBO_DRIVER_FUNCTION(cuGraphDestroy)(graph);
    return result;
  }

  bool capturing_ = false;
};

TEST_P(CudaCapture, SurvivesCallsOfOtherThreads) {
  const StreamRef captured = new_stream();
  const StreamRef other = new_stream();
  SharedWords words(device());
  const EventHandle event = device().create_event(0);
  std::string failure;
  const CUresult result = capture_while(captured, [&] {
    try {
      device().record_event(other, event);
      (void)device().query_event(0, event);
      const WordWrite write{words.word(0), 1};
      device().write_words(other, {&write, 1});
      device().wait_word(other, words.word(0), 1);
      void* memory = device().try_allocate(0, 2 * kMiB);
      (void)device().export_memory(0, memory);
      device().free(0, memory);
      SharedWords more(device());
      device().synchronize_stream(other);
    } catch (const std::exception& error) {
      failure = error.what();
    }
  });
  EXPECT_EQ(failure, "");
  EXPECT_EQ(result, CUDA_SUCCESS);
  EXPECT_TRUE(capturing_);
  EXPECT_FALSE(device().is_capturing(captured));
  device().destroy_event(0, event);
}

// Releases that wait for an idle device, and mappings that are closed, wait on a thread of their own,
// whatever is captured meanwhile.
TEST_P(CudaCapture, SurvivesWaitingForTheDevice) {
  const StreamRef captured = new_stream();
  const StreamRef busy = new_stream();
  const EventHandle event = device().create_event(0);
  (void)kernels();
  bool waited = false;
  std::string failure;
  const CUresult result = capture_while(captured, [&] {
    try {
      keep_busy(busy, std::chrono::milliseconds(300));
      device().record_event(busy, event);
      device().synchronize_device(0);
      waited = device().query_event(0, event);
    } catch (const std::exception& error) {
      failure = error.what();
    }
    if (device().is_lost(0)) failure += " lost";
  });
  EXPECT_EQ(failure, "");
  EXPECT_TRUE(waited);
  EXPECT_EQ(result, CUDA_SUCCESS);
  device().destroy_event(0, event);
}

// Takes all memory of the device, but for less than a MiB, and gives it back at its end.
class FullDevice {
 public:
  explicit FullDevice(Device& device) : device_(device) { fill(std::size_t{1} << 40); }
  ~FullDevice() {
    for (void* taken : taken_) device_.free(0, taken);
  }
  FullDevice(const FullDevice&) = delete;
  FullDevice& operator=(const FullDevice&) = delete;

  // Takes what other processes have given back since, in pieces of `largest_bytes` and less.
  void fill(std::size_t largest_bytes) {
    for (std::size_t size_bytes = largest_bytes; size_bytes >= kMiB;) {
      void* taken = device_.try_allocate(0, size_bytes);
      if (taken == nullptr) {
        size_bytes /= 2;
      } else {
        taken_.push_back(taken);
      }
    }
  }

 private:
  Device& device_;
  std::vector<void*> taken_;
};

// Two rounds in each mode: nothing that the first one needs is used up by it.
TEST_P(CudaCapture, SurvivesWaitingForAFullDevice) {
  const StreamRef captured = new_stream();
  const StreamRef busy = new_stream();
  const EventHandle event = device().create_event(0);
  keep_busy(busy, std::chrono::milliseconds(1));  // needs memory the first time
  device().synchronize_device(0);
  FullDevice full(device());
  for (std::size_t round = 0; round < 6; ++round) {
    constexpr std::array kModes = {CU_STREAM_CAPTURE_MODE_GLOBAL,
                                   CU_STREAM_CAPTURE_MODE_THREAD_LOCAL,
                                   CU_STREAM_CAPTURE_MODE_RELAXED};
    bool was_idle = true;
    bool waited = false;
    std::string failure;
    const auto meanwhile = [&] {
      try {
        full.fill(std::size_t{1} << 30);
        keep_busy(busy, std::chrono::milliseconds(300));
        device().record_event(busy, event);
        was_idle = device().query_event(0, event);
        device().synchronize_device(0);
        waited = device().query_event(0, event);
      } catch (const std::exception& error) {
        failure = error.what();
      }
    };
    const CUresult result = capture_while(captured, meanwhile, kModes[round % kModes.size()]);
    EXPECT_EQ(failure, "") << round;
    EXPECT_FALSE(was_idle) << round;
    EXPECT_TRUE(waited) << round;
    EXPECT_EQ(result, CUDA_SUCCESS) << round;
  }
  device().destroy_event(0, event);
}

TEST_P(CudaCapture, LeavesTheThreadsCaptureModeAlone) {
  const auto exchange = LIMBO_DRIVER_FUNCTION(cuThreadExchangeStreamCaptureMode);
  const CurrentContext current(0);
  CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
  check_cuda("cuThreadExchangeStreamCaptureMode", exchange(&mode));
  const CUstreamCaptureMode original = mode;
  (void)device().memory_info(0);
  mode = original;
  check_cuda("cuThreadExchangeStreamCaptureMode", exchange(&mode));
  EXPECT_EQ(mode, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
}

TEST_P(CudaCapture, LeavesTheThreadsContextAlone) {
  const auto get = LIMBO_DRIVER_FUNCTION(cuCtxGetCurrent);
  std::string failure;
  std::thread fresh([&] {
    CUcontext context = nullptr;
    (void)device().memory_info(0);
    check_cuda("cuCtxGetCurrent", get(&context));
    if (context != nullptr) failure = "a thread that had no context has one now";
  });
  fresh.join();
  EXPECT_EQ(failure, "");
  if (device().device_count() < 2) return;
  const CurrentContext current(1);
  CUcontext before = nullptr;
  CUcontext after = nullptr;
  check_cuda("cuCtxGetCurrent", get(&before));
  (void)device().memory_info(0);
  check_cuda("cuCtxGetCurrent", get(&after));
  EXPECT_EQ(before, after);
}

TEST_P(CudaCapture, AFailedCallLeavesNoErrorBehind) {
  MemoryHandle handle;
  EXPECT_EQ(error_of([&] { (void)device().open_memory(0, handle); }), ErrorCode::kDeviceError);
  std::uint32_t* memory = new_memory(512);
  device().fill(default_stream(), memory, 1, 1);
  EXPECT_EQ(read(memory, 1)[0], 1U);
}

INSTANTIATE_TEST_SUITE_P(Cuda, CudaCapture, ::testing::Values("cuda"), device_suite_name);

}  // namespace
}  // namespace limbo::testing

#endif
