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

void NumbersBehind::set(std::vector<NumberBehind>&& numbers, bool lost) noexcept {
  const std::lock_guard lock(mutex_);
  numbers_ = std::move(numbers);
  lost_ = lost;
}

void NumbersBehind::add_all(const NumbersBehind& other) {
  std::vector<NumberBehind> added;
  bool lost = false;
  {
    const std::lock_guard lock(other.mutex_);
    added = other.numbers_;
    lost = other.lost_;
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
  lost_ = lost_ || lost;
  numbers_.swap(kept);  // what is left out goes after the unlock: timelines may end with it
}

bool NumbersBehind::lost() const noexcept {
  const std::lock_guard lock(mutex_);
  return lost_ || std::any_of(numbers_.begin(), numbers_.end(), [](const NumberBehind& number) {
           return number.arrival() == Arrival::kLost;
         });
}

}  // namespace limbo
