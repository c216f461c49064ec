#include "ipc/stream_room.h"

#include <algorithm>

#include "allocator/error.h"
#include "ipc/made_stream.h"

namespace limbo {

namespace {

// A batch that needs more than there may be starts on an empty stream.
bool is_full(std::uint32_t unlanded, std::uint32_t more) {
  return unlanded > 0 && unlanded + more > StreamRoom::kMaxUnlanded;
}

}  // namespace

// The emptiest.
std::optional<StreamUse> StreamRoom::lane_with_room(int device, std::uint32_t entries) const {
  const auto lanes = lanes_.find(device);
  if (lanes == lanes_.end()) return std::nullopt;
  std::optional<StreamUse> best;
  std::uint32_t least = 0;
  for (const StreamUse& lane : lanes->second) {
    const auto found = unlanded_.find(key_of(lane));
    const std::uint32_t load = found == unlanded_.end() ? 0 : found->second;
    if (is_full(load, entries) || (best && load >= least)) continue;
    best = lane;
    least = load;
  }
  // A busy lane is taken only where no other can be made.
  if (best && least > 0 && lanes->second.size() < kMaxLanes) return std::nullopt;
  return best;
}

// `taken` gets the place where each stream is, or would be.
bool StreamRoom::have_room(std::span<const StreamUse> streams, Taken& taken) {
  taken.entries.clear();
  for (const StreamUse& use : streams) {
    const StreamKey key = key_of(use);
    const auto place = unlanded_.lower_bound(key);
    if (place != unlanded_.end() && place->first == key && is_full(place->second, 1)) return false;
    taken.entries.emplace_back(place, 1);
  }
  return true;
}

// All of them, or none: the places are made first.
void StreamRoom::take_places(std::span<const StreamUse> streams, Taken& taken) {
  for (std::size_t i = 0; i < taken.entries.size(); ++i) {
    Unlanded::iterator& place = taken.entries[i].first;
    place = unlanded_.try_emplace(place, key_of(i < streams.size() ? streams[i] : *taken.lane));
  }
  for (const auto& [place, count] : taken.entries) place->second += count;
}

std::optional<StreamRoom::Taken> StreamRoom::take(std::span<const StreamUse> streams, bool by_lane,
                                                  int lane_device) {
  Taken taken;
  taken.entries.reserve(streams.size() + 1);
  const auto on_lane = static_cast<std::uint32_t>(streams.size() + 1);
  while (true) {
    {
      const std::lock_guard lock(mutex_);
      if (!have_room(streams, taken)) return std::nullopt;
      if (by_lane) taken.lane = lane_with_room(lane_device, on_lane);
      if (!by_lane || taken.lane) {
        if (by_lane) {
          taken.entries.emplace_back(unlanded_.lower_bound(key_of(*taken.lane)), on_lane);
        }
        take_places(streams, taken);
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
  for (const auto& [place, count] : taken.entries) {
    if ((place->second -= count) == 0) unlanded_.erase(place);
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
