// What the sources of ReleaseQueue share.
#pragma once

#include "ipc/release_queue.h"

namespace limbo {

// Counts jobs that are in no list while a thread works on them.
class ReleaseQueue::InHands {
 public:
  InHands(ReleaseQueue& queue, std::uint64_t count) noexcept : queue_(queue), count_(count) {
    queue_.in_hands_.fetch_add(count_);
  }
  ~InHands() { queue_.in_hands_.fetch_sub(count_); }
  InHands(const InHands&) = delete;
  InHands& operator=(const InHands&) = delete;

 private:
  ReleaseQueue& queue_;
  const std::uint64_t count_;
};

}  // namespace limbo
