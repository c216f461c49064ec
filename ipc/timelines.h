// The timelines of this process's streams: 64-bit words in shared memory that streams set to ever
// higher numbers, so that streams of other processes can wait for "at least n". The table of the words
// is in protocol/timeline.h.
//
// Thread-safe. One lock per timeline covers {take the next number, enqueue its write}, so that on
// one word numbers land in order; it is a leaf, and the one place where a device call is made under
// a lock: a stream that takes no entries blocks the senders on that very stream, as a launch would.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <mutex>

#include "allocator/device/device.h"
#include "ipc/first_success.h"
#include "ipc/layout.h"
#include "ipc/protocol/timeline.h"
#include "ipc/shared_memory.h"

namespace limbo {

class Timelines {
 public:
  Timelines(Device& device, std::uint32_t capacity);
  // Over memory that another process has made for this one: a lease's. Nobody else advances it.
  Timelines(Device& device, std::uint32_t capacity, SharedMemory memory);
  // Settles, or leaves the memory to the device until the process ends.
  ~Timelines();

  // Behind everything that `stream` has queued: sets its timeline to a number of its own, and says
  // which. Throws kLedgerFull when there are more streams with work under way than timelines, and
  // kDeviceError. Registers the memory with the device at the first call.
  [[nodiscard]] TimelinePoint advance(StreamRef stream);

  // Later work of `stream` waits for a number of this process's own.
  void wait(StreamRef stream, const TimelinePoint& point);

  // Whether the stream has got there. Makes no device call.
  [[nodiscard]] bool reached(const TimelinePoint& point) const noexcept;
  // Whether all have got to where they were told to.
  [[nodiscard]] bool all_reached();

  // Lets every wait pass: this process's GPU work will not come.
  void end_all() noexcept;
  // Whether that number came, may still come, or was let pass without it.
  [[nodiscard]] protocol::Arrival arrival(const TimelinePoint& point) const noexcept;

  // At the end, when nobody calls anything else any more: the device forgets the memory when every
  // number has landed. Where one has not, it waits for that device. (A driver may do so by itself;
  // nothing depends on that.) False: a device could not be waited for just now, and nothing has
  // changed; ask again.
  [[nodiscard]] bool settle() noexcept;

  [[nodiscard]] int fd() const noexcept { return memory_.fd(); }
  [[nodiscard]] SharedWord& value(std::uint32_t index) const noexcept;

 private:
  [[nodiscard]] Timeline& timeline(std::uint32_t index) const noexcept;

  // Handles are reused by the driver; ids are not.
  using StreamKey = std::pair<int, std::uint64_t>;  // device, Device::stream_id

  struct Entry {
    std::mutex mutex;  // leaf; guards what follows, and the order of enqueueing
    StreamKey key;
    std::uint64_t taken = 0;      // the last number taken
    std::uint64_t enqueued = 0;   // the last one whose write was enqueued
    std::uint64_t last_used = 0;  // guarded by table_mutex_
    bool settled = false;         // nothing is on its way any more, whatever the word says
  };

  void register_once(int device);
  [[nodiscard]] bool is_idle(int device) noexcept;
  [[nodiscard]] std::uint32_t entry_of(const StreamKey& key);
  [[nodiscard]] bool landed(const Entry& entry, std::uint32_t index) const noexcept;
  [[nodiscard]] std::uint32_t take_over_landed(const StreamKey& key);

  Device& device_;
  const std::uint32_t capacity_;
  SharedMemory memory_;
  FirstSuccess registration_;
  bool registered_ = false;

  std::mutex table_mutex_;  // guards the next three; taken before an entry's, never after it
  std::map<StreamKey, std::uint32_t> index_of_;
  std::deque<Entry> entries_;
  std::uint64_t uses_ = 0;
};

}  // namespace limbo
