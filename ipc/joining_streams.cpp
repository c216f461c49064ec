#include "ipc/joining_streams.h"

#include <algorithm>
#include <string>
#include <utility>

#include "allocator/error.h"
#include "ipc/made_stream.h"

namespace limbo {

// Nobody else enqueues there while it lives.
class JoiningStreams::Taken {
 public:
  Taken(JoiningStreams& all, int device_index, Waits&& waits)
      : all_(all), device_index_(device_index), place_(all.take(device_index, std::move(waits))) {}
  ~Taken() {
    const std::lock_guard lock(all_.mutex_);
    all_.lanes_[device_index_][place_].taken = false;
  }
  Taken(const Taken&) = delete;
  Taken& operator=(const Taken&) = delete;

  [[nodiscard]] StreamRef stream() const {
    const std::lock_guard lock(all_.mutex_);
    return all_.lanes_[device_index_][place_].stream;
  }

 private:
  JoiningStreams& all_;
  const int device_index_;
  const std::size_t place_;
};

JoiningStreams::~JoiningStreams() {
  for (const auto& [device_index, lanes] : lanes_) {
    for (const Lane& lane : lanes) {
      try {
        device_.destroy_stream(lane.stream);
      } catch (const std::exception&) {
        // The device is gone; so is the stream.
      }
    }
  }
}

bool JoiningStreams::suits(const Lane& lane, const Waits& waits) const {
  return !lane.taken && std::all_of(lane.waits.begin(), lane.waits.end(), [&](const auto& before) {
    return timelines_.reached(before) ||
           std::any_of(waits.begin(), waits.end(), [&](const TimelinePoint& wait) {
             return wait.index == before.index && wait.number >= before.number;
           });
  });
}

std::size_t JoiningStreams::take(int device_index, Waits&& waits) {
  while (true) {
    {
      const std::lock_guard lock(mutex_);
      std::vector<Lane>& lanes = lanes_[device_index];
      const auto found = std::find_if(lanes.begin(), lanes.end(),
                                      [&](const Lane& lane) { return suits(lane, waits); });
      if (found != lanes.end()) {
        found->taken = true;
        found->waits = std::move(waits);  // now, since nobody knows what a failed call has enqueued
        return static_cast<std::size_t>(found - lanes.begin());
      }
      if (lanes.size() >= kMost) {
        throw Error(ErrorCode::kLedgerFull,
                    "This send stands behind more than two streams, and all " +
                        std::to_string(kMost) + " streams that join others on device " +
                        std::to_string(device_index) + " are behind work that has not ended.",
                    "Send from the stream that received the memory, or when that work has ended.");
      }
    }
    MadeStream made(device_, device_index);
    const std::lock_guard lock(mutex_);
    lanes_[device_index].push_back({.stream = made.get()});
    made.keep();
  }
}

std::array<TimelinePoint, 2> JoiningStreams::advance(std::span<const StreamRef> streams) {
  std::array<TimelinePoint, 2> numbers;
  if (streams.size() <= 2) {
    for (std::size_t i = 0; i < streams.size(); ++i) numbers[i] = timelines_.advance(streams[i]);
    return numbers;
  }
  Waits waits{timelines_.advance(streams[0])};
  for (const StreamRef stream : streams.subspan(2)) waits.push_back(timelines_.advance(stream));
  numbers[0] = join(streams[0].device, waits);
  numbers[1] = timelines_.advance(streams[1]);
  return numbers;
}

TimelinePoint JoiningStreams::join(int device_index, const Waits& waits) {
  const Taken lane(*this, device_index, Waits(waits));
  const StreamRef stream = lane.stream();
  for (const TimelinePoint& wait : waits) timelines_.wait(stream, wait);
  return timelines_.advance(stream);
}

}  // namespace limbo
