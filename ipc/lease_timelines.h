// The timelines of one lease, as those see them who wait on them: the process that lends, when it
// opens what was forwarded to it, and third processes. Their owner, the consumer that forwards, has
// class Timelines for the same memory. The table of the words is in protocol/timeline.h.
//
// Thread-safe. The memory is registered with the device at the first wait: most leases never
// forward. It stays mapped for as long as anybody asks whether a number came.
#pragma once

#include <cstdint>
#include <mutex>
#include <vector>

#include "allocator/device/device.h"
#include "ipc/first_success.h"
#include "ipc/layout.h"
#include "ipc/protocol/timeline.h"
#include "ipc/shared_memory.h"

namespace limbo {

class LeaseTimelines {
 public:
  LeaseTimelines(Device& device, SharedMemory memory, std::uint32_t capacity);
  // Call finish and settle before, where waits may be under way.
  ~LeaseTimelines();
  LeaseTimelines(const LeaseTimelines&) = delete;
  LeaseTimelines& operator=(const LeaseTimelines&) = delete;

  // Later work of `stream` waits for `number`; for nothing once they are finished. Throws
  // kBadDescriptor for a timeline that cannot exist, kDeviceError.
  void wait(StreamRef stream, std::uint32_t index, std::uint64_t number);

  // Lets every wait pass, now and later: their owner has ended. A late write of its GPU may set a
  // word back, so it is called again until that is quiet. No device call.
  void complete() noexcept;

  // Whether those who waited for `number` were let pass without it.
  [[nodiscard]] bool ended_before(std::uint32_t index, std::uint64_t number) const noexcept;

  // The same while it may still come.
  [[nodiscard]] protocol::Arrival arrival(std::uint32_t index, std::uint64_t number) const noexcept;

  // Their owner is quiet and they are complete: no wait begins any more. False while some thread is
  // enqueueing one.
  [[nodiscard]] bool finish() noexcept;
  // The same where the caller knows that nobody enqueues any wait, and that none is under way: the
  // device forgets them at once.
  void end() noexcept;
  // Waits until no stream looks at the words any more, and lets the device forget them. They must be
  // finished. False: a device could not be waited for just now, and nothing has changed; ask again.
  [[nodiscard]] bool settle() noexcept;

  [[nodiscard]] int fd() const noexcept { return memory_.fd(); }
  [[nodiscard]] std::uint32_t capacity() const noexcept { return capacity_; }

 private:
  [[nodiscard]] Timeline* timelines() const noexcept {
    return static_cast<Timeline*>(memory_.data());
  }
  // False: there is nothing to wait for.
  [[nodiscard]] bool begin_wait(int device);
  void end_wait() noexcept;
  void unregister() noexcept;

  Device& device_;
  SharedMemory memory_;
  const std::uint32_t capacity_;
  FirstSuccess registration_;
  bool registered_ = false;
  bool left_to_driver_ = false;  // which has refused to let go

  std::mutex mutex_;          // a leaf; guards what follows
  std::vector<int> devices_;  // on which somebody waits, or has waited
  std::uint32_t waits_ = 0;   // being enqueued just now
  bool finished_ = false;
};

}  // namespace limbo
