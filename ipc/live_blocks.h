// The received blocks that live, so that all of one device can be kept for a graph at once.
#pragma once

#include <list>
#include <memory>
#include <mutex>
#include <utility>

#include "ipc/fork_guard.h"
#include "ipc/release_job.h"

namespace limbo {

// Something received that graphs can keep.
class KeptByGraphs {
 public:
  virtual ~KeptByGraphs() = default;
  // Its claim lasts until that graph is over. Does nothing once it is released. Called under
  // LiveBlocks' lock: takes a lock of its own at most, which is a leaf.
  virtual void keep_until(const std::shared_ptr<const GraphEnd>& end) = 0;
};

// Thread-safe.
class LiveBlocks {
 public:
  struct Entry {
    KeptByGraphs* block;
    int device;
  };
  using Place = std::list<Entry>::iterator;

  // From here on the block may be told to be kept, by any thread.
  [[nodiscard]] Place add(KeptByGraphs* block, int device) {
    const std::lock_guard lock(mutex_);
    return blocks_.insert(blocks_.end(), {block, device});
  }
  // Before the block goes.
  void remove(Place place) noexcept {
    const std::lock_guard lock(mutex_);
    blocks_.erase(place);
  }
  void keep_all_until(int device, const std::shared_ptr<const GraphEnd>& end) {
    const std::lock_guard lock(mutex_);
    for (const Entry& entry : blocks_) {
      if (entry.device == device) entry.block->keep_until(end);
    }
  }

 private:
  std::mutex mutex_;  // guards blocks_
  std::list<Entry> blocks_;
};

// A block's place among the living, from shortly before it is handed out to its release or its end.
class Living {
 public:
  Living(LiveBlocks& all, KeptByGraphs* block) : all_(all), block_(block) {}
  ~Living() { end(); }
  Living(const Living&) = delete;
  Living& operator=(const Living&) = delete;
  void begin(int device) {
    place_ = all_.add(block_, device);
    lives_ = true;
  }
  // In a fork child it is the parent's, and so may be the thread that had the lock at the fork.
  void end() noexcept {
    if (std::exchange(lives_, false) && !fork_guard::is_forked_child()) all_.remove(place_);
  }

 private:
  LiveBlocks& all_;
  KeptByGraphs* const block_;
  LiveBlocks::Place place_{};
  bool lives_ = false;
};

}  // namespace limbo
