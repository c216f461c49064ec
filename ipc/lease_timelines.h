// The timelines of one lease, as those see them who wait on them: the process that lends, when it
// opens what was forwarded to it, and third processes. Their owner, the consumer that forwards, has
// class Timelines for the same memory, and the table of the words stands there.
//
// Thread-safe. The memory is registered with the device at the first wait: most leases never
// forward.
#pragma once

#include <cstdint>
#include <mutex>
#include <vector>

#include "allocator/device/device.h"
#include "ipc/layout.h"
#include "ipc/shared_memory.h"

namespace limbo {

class LeaseTimelines {
 public:
  LeaseTimelines(Device& device, SharedMemory memory, std::uint32_t capacity);
  // Call settle before, where waits may be under way.
  ~LeaseTimelines();
  LeaseTimelines(const LeaseTimelines&) = delete;
  LeaseTimelines& operator=(const LeaseTimelines&) = delete;

  // Later work of `stream` waits for `number`. Throws kBadDescriptor for a timeline that cannot
  // exist, kDeviceError.
  void wait(StreamRef stream, std::uint32_t index, std::uint64_t number);

  // Lets every wait pass, now and later: their owner has ended. A late write of its GPU may set a
  // word back, so it is called again until that is quiet. No device call.
  void complete() noexcept;

  // Waits until no stream looks at the words any more. They must be complete.
  void settle() noexcept;

  [[nodiscard]] int fd() const noexcept { return memory_.fd(); }
  [[nodiscard]] std::uint32_t capacity() const noexcept { return capacity_; }

 private:
  [[nodiscard]] Timeline* timelines() const noexcept {
    return static_cast<Timeline*>(memory_.data());
  }

  Device& device_;
  const SharedMemory memory_;
  const std::uint32_t capacity_;
  std::once_flag registration_;
  bool registered_ = false;

  std::mutex mutex_;          // a leaf; guards what follows
  std::vector<int> devices_;  // on which somebody waits, or has waited
};

}  // namespace limbo
