// Where caches leave full chains for other threads: per device and stream, one lock per size.
//
// Small blocks only (512 bytes to 1 MiB); large ones go to the central free list, where they can
// merge. The locks are leaves: nothing is called and nothing is waited for under them, so they may
// be taken inside a gate and under the heap lock.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <mutex>
#include <vector>

#include "allocator/block.h"
#include "allocator/sizes.h"

namespace limbo {

inline constexpr std::size_t kSizeClasses = sizes::kSmallLimit / sizes::kBlockUnit;

// The class of a small block's size, from 0.
[[nodiscard]] constexpr std::size_t size_class(std::size_t size_bytes) noexcept {
  return size_bytes / sizes::kBlockUnit - 1;
}

[[nodiscard]] constexpr std::size_t class_size(std::size_t size_class) noexcept {
  return (size_class + 1) * sizes::kBlockUnit;
}

class StreamDepot {
 public:
  // Throws std::bad_alloc, and then the chain is still the caller's.
  void put(std::size_t size_class, const Chain& chain);

  // A chain of the class; empty if there is none.
  [[nodiscard]] Chain take(std::size_t size_class) noexcept;

  // Adds everything to `chains`, without walking along them.
  void take_all(ChainList& chains) noexcept;

  // Calls visit(Block*) for every block.
  template <class Visit>
  void visit(const Visit& look) {
    for (Bin& bin : bins_) {
      const std::lock_guard lock(bin.mutex);
      for (const Chain& chain : bin.chains) {
        for (Block* block = chain.head; block != nullptr; block = block->link) look(block);
      }
    }
  }

 private:
  struct Bin {
    std::mutex mutex;  // guards chains
    std::vector<Chain> chains;
  };

  std::array<Bin, kSizeClasses> bins_;
  std::atomic<std::size_t> chain_count_{0};  // a hint that spares empty depots the walk
};

}  // namespace limbo
