// What every process of a benchmark has: the product's parts on a device whose calls can be timed.
#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "allocator/allocator.h"
#include "ipc/sharing_service.h"
#include "tests/bench/measured_device.h"
#include "tests/support/test_kernels.h"

namespace limbo::bench {

// Made at the first call, of the kind that LIMBO_DEVICE names; kept for ever, as a process keeps its
// own.
[[nodiscard]] MeasuredDevice& device();
[[nodiscard]] Allocator& allocator();
[[nodiscard]] SharingService& sharing();
// Kernels loaded on device 0. Throws std::runtime_error where there is no compiler for them.
[[nodiscard]] testing::TestKernels& kernels();

// What a process does before it ends.
void end_sharing();

// A stream of device 0 and a kernel that can keep it busy.
class BusyStream {
 public:
  BusyStream();

  [[nodiscard]] StreamRef ref() const noexcept { return stream_; }
  // Later work of the stream waits so long.
  void keep_busy(std::chrono::milliseconds duration);
  // Whether it is still busy with the last keep_busy.
  [[nodiscard]] bool busy();
  void synchronize();

 private:
  StreamRef stream_;
  void* scratch_ = nullptr;
  EventHandle passed_ = nullptr;
};

}  // namespace limbo::bench
