#include "ipc/numbers_behind.h"

#include <algorithm>
#include <utility>

#include "ipc/producer_link.h"

namespace limbo {

using protocol::Arrival;

protocol::Arrival NumberBehind::arrival() const noexcept {
  if (foreign) return foreign->arrival(point.index, point.number);
  return own ? own->own_arrival(point) : Arrival::kCame;
}

void NumbersBehind::set(std::vector<NumberBehind>&& numbers, bool lost,
                        const StreamUse& received_on) noexcept {
  const std::lock_guard lock(mutex_);
  numbers_ = std::move(numbers);
  lost_ = lost;
  received_on_ = received_on;
}

void NumbersBehind::add_all(const NumbersBehind& other) {
  std::vector<NumberBehind> added;
  std::vector<StreamUse> streams;
  bool lost = false;
  {
    const std::lock_guard lock(other.mutex_);
    added = other.numbers_;
    lost = other.lost_;
    streams = other.also_on_;
    streams.push_back(other.received_on_);
  }
  std::vector<NumberBehind> kept;
  const auto keep = [&kept, &lost](const NumberBehind& number) {
    const Arrival arrival = number.arrival();
    lost = lost || arrival == Arrival::kLost;
    if (arrival != Arrival::kPending) return;
    const auto same = std::find_if(kept.begin(), kept.end(), [&](const NumberBehind& earlier) {
      return earlier.same_timeline(number);
    });
    if (same == kept.end()) {
      kept.push_back(number);
    } else {
      same->point.number = std::max(same->point.number, number.point.number);
    }
  };
  std::for_each(added.begin(), added.end(), keep);
  const std::lock_guard lock(mutex_);
  std::for_each(numbers_.begin(), numbers_.end(), keep);
  std::erase_if(streams, [&](const StreamUse& stream) {
    return stream == received_on_ ||
           std::find(also_on_.begin(), also_on_.end(), stream) != also_on_.end();
  });
  also_on_.insert(also_on_.end(), streams.begin(), streams.end());
  any_also_ = true;
  lost_ = lost_ || lost;
  numbers_.swap(kept);  // what is left out goes after the unlock: timelines may end with it
}

AlsoBehind NumbersBehind::also() const {
  AlsoBehind also;
  const std::lock_guard lock(mutex_);
  if (!any_also_) return also;
  also.any = true;
  also.lost = lost_;
  for (const NumberBehind& number : numbers_) {
    const Arrival arrival = number.arrival();
    also.lost = also.lost || arrival == Arrival::kLost;
    if (arrival == Arrival::kPending) also.numbers.push_back(number);
  }
  also.streams = also_on_;
  return also;
}

bool NumbersBehind::lost() const noexcept {
  const std::lock_guard lock(mutex_);
  return lost_ || std::any_of(numbers_.begin(), numbers_.end(), [](const NumberBehind& number) {
           return number.arrival() == Arrival::kLost;
         });
}

}  // namespace limbo
