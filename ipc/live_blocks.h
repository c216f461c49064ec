// The received blocks that live, so that all of one device can be kept for a graph at once.
#pragma once

#include <list>
#include <memory>
#include <mutex>

#include "ipc/release_job.h"

namespace limbo {

// Something received that graphs can keep.
class KeptByGraphs {
 public:
  virtual ~KeptByGraphs() = default;
  // Its claim lasts until that graph is over. Does nothing once it is released. Called under
  // LiveBlocks' lock: takes a lock of its own at most, which is a leaf.
  virtual void keep_until(const std::shared_ptr<const GraphEnd>& end) = 0;
  [[nodiscard]] virtual int kept_on() const noexcept = 0;  // its device
};

// Thread-safe.
class LiveBlocks {
 public:
  using Place = std::list<KeptByGraphs*>::iterator;

  [[nodiscard]] Place add(KeptByGraphs* block) {
    const std::lock_guard lock(mutex_);
    return blocks_.insert(blocks_.end(), block);
  }
  // Before the block goes.
  void remove(Place place) noexcept {
    const std::lock_guard lock(mutex_);
    blocks_.erase(place);
  }
  void keep_all_until(int device, const std::shared_ptr<const GraphEnd>& end) {
    const std::lock_guard lock(mutex_);
    for (KeptByGraphs* block : blocks_) {
      if (block->kept_on() == device) block->keep_until(end);
    }
  }

 private:
  std::mutex mutex_;  // guards blocks_
  std::list<KeptByGraphs*> blocks_;
};

// A block's place among the living, from fill to release or to its end.
class Living {
 public:
  Living(LiveBlocks& all, KeptByGraphs* block) : all_(all), block_(block) {}
  ~Living() { end(); }
  Living(const Living&) = delete;
  Living& operator=(const Living&) = delete;
  void begin() {
    place_ = all_.add(block_);
    lives_ = true;
  }
  void end() noexcept {
    if (lives_) all_.remove(place_);
    lives_ = false;
  }

 private:
  LiveBlocks& all_;
  KeptByGraphs* const block_;
  LiveBlocks::Place place_{};
  bool lives_ = false;
};

}  // namespace limbo
