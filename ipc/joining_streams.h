// Streams of the library's own on which the numbers of several streams become one, where a send stands
// behind more streams than a descriptor has numbers for. (A wait on one of the program's could
// deadlock against a timeline.)
//
// A number of such a stream comes behind every wait that the stream still has before it. So a stream
// is taken for a send only where each of these is reached, or is one that the send has to wait for
// anyway: an earlier number of the same timeline. Else two sends that have nothing to do with each
// other would be one behind the other, and where what the first waits for is done in answer to the
// second, in another process perhaps, neither would ever arrive.
#pragma once

#include <array>
#include <cstddef>
#include <map>
#include <mutex>
#include <span>
#include <vector>

#include "allocator/device/device.h"
#include "ipc/layout.h"
#include "ipc/timelines.h"

namespace limbo {

// Thread-safe.
class JoiningStreams {
 public:
  // Of a device: so many sends can be behind work that has not ended, each behind other streams.
  static constexpr std::size_t kMost = 64;

  JoiningStreams(Device& device, Timelines& timelines) : device_(device), timelines_(timelines) {}
  ~JoiningStreams();
  JoiningStreams(const JoiningStreams&) = delete;
  JoiningStreams& operator=(const JoiningStreams&) = delete;

  // Numbers behind everything that the streams have queued, each of which is there once: one of each,
  // or, where there are more than two, one of the second and one of all others together. Throws
  // kLedgerFull, kDeviceError.
  [[nodiscard]] std::array<TimelinePoint, 2> advance(std::span<const StreamRef> streams);

 private:
  struct Lane {
    StreamRef stream;
    std::vector<TimelinePoint> waits{};  // the last that may be enqueued there
    bool taken = false;                  // by a thread that enqueues there just now
  };
  class Taken;

  using Waits = std::vector<TimelinePoint>;
  [[nodiscard]] TimelinePoint join(int device_index, const Waits& waits);
  [[nodiscard]] bool suits(const Lane& lane, const Waits& waits) const;
  // The place among the device's.
  [[nodiscard]] std::size_t take(int device_index, Waits&& waits);

  Device& device_;
  Timelines& timelines_;
  std::mutex mutex_;                        // a leaf; guards the next
  std::map<int, std::vector<Lane>> lanes_;  // by device; never fewer
};

}  // namespace limbo
