#include "ipc/stream_room.h"

#include <algorithm>

#include "allocator/error.h"
#include "ipc/made_stream.h"

namespace limbo {

// A batch that needs more than there may be starts on an empty stream.
bool StreamRoom::full(const StreamKey& key, std::uint32_t more) const {
  const auto found = unlanded_.find(key);
  return found != unlanded_.end() && found->second > 0 && found->second + more > kMaxUnlanded;
}

// The emptiest.
std::optional<StreamUse> StreamRoom::lane_with_room(int device, std::uint32_t entries) const {
  const auto lanes = lanes_.find(device);
  if (lanes == lanes_.end()) return std::nullopt;
  std::optional<StreamUse> best;
  std::uint32_t least = 0;
  for (const StreamUse& lane : lanes->second) {
    const auto found = unlanded_.find(key_of(lane));
    const std::uint32_t load = found == unlanded_.end() ? 0 : found->second;
    if (full(key_of(lane), entries) || (best && load >= least)) continue;
    best = lane;
    least = load;
  }
  // A busy lane is taken only where no other can be made.
  if (best && least > 0 && lanes->second.size() < kMaxLanes) return std::nullopt;
  return best;
}

std::optional<StreamRoom::Taken> StreamRoom::take(std::span<const StreamUse> streams, bool by_lane,
                                                  int lane_device) {
  Taken taken;
  taken.entries.reserve(streams.size() + 1);
  for (const StreamUse& use : streams) taken.entries.push_back({key_of(use), 1});
  const auto on_lane = static_cast<std::uint32_t>(streams.size() + 1);
  while (true) {
    {
      const std::lock_guard lock(mutex_);
      for (const auto& [key, count] : taken.entries) {
        if (full(key, count)) return std::nullopt;
      }
      if (by_lane) taken.lane = lane_with_room(lane_device, on_lane);
      if (!by_lane || taken.lane) {
        if (by_lane) taken.entries.push_back({key_of(*taken.lane), on_lane});
        for (const auto& [key, count] : taken.entries) unlanded_.try_emplace(key);
        for (const auto& [key, count] : taken.entries) unlanded_[key] += count;
        return taken;
      }
      if (lanes_[lane_device].size() >= kMaxLanes) return std::nullopt;
    }
    MadeStream made(device_, lane_device);
    const StreamUse lane{made.get(), device_.stream_id(made.get())};
    const std::lock_guard lock(mutex_);
    lanes_[lane_device].push_back(lane);
    made.keep();
  }
}

void StreamRoom::give_back(const Taken& taken) noexcept {
  const std::lock_guard lock(mutex_);
  for (const auto& [key, count] : taken.entries) {
    const auto found = unlanded_.find(key);
    if ((found->second -= count) == 0) unlanded_.erase(found);
  }
}

void StreamRoom::abandon(const Taken& taken) noexcept {
  give_back(taken);
  if (!taken.lane) return;
  const std::lock_guard lock(mutex_);
  const auto lanes = lanes_.find(taken.lane->stream.device);
  if (lanes != lanes_.end()) std::erase(lanes->second, *taken.lane);
}

StreamRoom::Event StreamRoom::take_event(int device) {
  {
    const std::lock_guard lock(mutex_);
    const auto found = std::find_if(spare_events_.begin(), spare_events_.end(),
                                    [&](const Event& event) { return event.device == device; });
    if (found != spare_events_.end()) {
      const Event event = *found;
      spare_events_.erase(found);
      return event;
    }
  }
  return {device, device_.create_event(device)};
}

void StreamRoom::give_back(const Event& event) noexcept {
  try {
    const std::lock_guard lock(mutex_);
    spare_events_.push_back(event);
    return;
  } catch (const std::bad_alloc&) {
    // Below.
  }
  try {
    device_.destroy_event(event.device, event.handle);
  } catch (const std::exception&) {
    // The device is gone, and its events with it.
  }
}

}  // namespace limbo
