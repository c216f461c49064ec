// How many entries of Limbo's own are unlanded on each stream, and what helps to keep them few.
//
// A stream takes 1,021 entries behind a long kernel, then the next call blocks the host, whatever it
// is. So at most kMaxUnlanded entries of a stream are Limbo's, the waits on its own streams
// included.
//
// Lanes are streams of Limbo's own: where a batch has to wait for events of the program's streams,
// it does so there. There are several, so that a batch behind a long kernel holds up no other.
//
// Thread-safe; no device call is made under its lock, which is a leaf.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "allocator/device/device.h"
#include "ipc/release_job.h"

namespace limbo {

class StreamRoom {
 public:
  static constexpr std::uint32_t kMaxUnlanded = 256;
  static constexpr std::size_t kMaxLanes = 8;  // of a device

  using StreamKey = std::pair<int, std::uint64_t>;
  static StreamKey key_of(const StreamUse& use) noexcept { return {use.stream.device, use.id}; }

  using Unlanded = std::map<StreamKey, std::uint32_t>;
  // Places in the room's map, which keeps them for as long as they are taken.
  struct Taken {
    std::vector<std::pair<Unlanded::iterator, std::uint32_t>> entries;
    std::optional<StreamUse> lane;
  };
  struct Event {
    int device = 0;
    EventHandle handle = nullptr;
  };

  explicit StreamRoom(Device& device) : device_(device) {}

  // Room for one batch behind `streams`: an entry on each; with `by_lane` also a wait for each and
  // the batch on a lane of `lane_device`. Nothing when there is none. Throws kDeviceError when a
  // lane cannot be made.
  [[nodiscard]] std::optional<Taken> take(std::span<const StreamUse> streams, bool by_lane,
                                          int lane_device);
  void give_back(const Taken& taken) noexcept;
  // The same; and its lane is never used again, nor destroyed: what it waits for may never come.
  void abandon(const Taken& taken) noexcept;

  // Throws kDeviceError.
  [[nodiscard]] Event take_event(int device);
  // For other batches; what can't be kept is destroyed.
  void give_back(const Event& event) noexcept;

 private:
  [[nodiscard]] bool have_room(std::span<const StreamUse> streams, Taken& taken);
  void take_places(std::span<const StreamUse> streams, Taken& taken);
  [[nodiscard]] std::optional<StreamUse> lane_with_room(int device, std::uint32_t entries) const;

  Device& device_;
  std::mutex mutex_;  // guards what follows
  Unlanded unlanded_;
  std::map<int, std::vector<StreamUse>> lanes_;
  std::vector<Event> spare_events_;
};

}  // namespace limbo
