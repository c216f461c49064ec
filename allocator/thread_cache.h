// What one thread keeps of the blocks it freed: per device and stream, by size.
//
// Everything here is used by the owner inside its gate, or by whoever has stopped the gate.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "allocator/block.h"
#include "allocator/depot.h"
#include "allocator/gate.h"
#include "allocator/stats_counters.h"

namespace limbo {

// The cached blocks of one stream. Small sizes have a bin each, of two chains: the one in use and a
// spare, so that a thread at the edge of a chain does not go to the depot at every step. Large
// sizes share a few entries by exact size.
class StreamCache {
 public:
  StreamCache(StreamRef stream, StreamDepot& depot) : stream_(stream), depot_(depot) {}

  [[nodiscard]] StreamRef stream() const noexcept { return stream_; }

  // A block of exactly this size, from here or from the depot; null if there is none.
  // `*from_depot_bytes` is raised by what came from the depot.
  [[nodiscard]] Block* take(std::size_t size_bytes, std::size_t* from_depot_bytes) noexcept;

  // Takes the block in. What no longer fits is returned, for the central free list.
  // `*to_depot_bytes` is raised by what went to the depot.
  [[nodiscard]] Chain put(Block* block, std::size_t* to_depot_bytes) noexcept;

  // Everything, as one chain.
  [[nodiscard]] Chain take_all() noexcept;

  // The large ones.
  [[nodiscard]] Chain take_large() noexcept;
  [[nodiscard]] bool holds_large() const noexcept;

  template <class Visit>
  void visit(const Visit& look) const {
    const auto walk = [&](const Chain& chain) {
      for (Block* block = chain.head; block != nullptr; block = block->link) look(block);
    };
    for (const Bin& bin : bins_) {
      walk(bin.active);
      walk(bin.spare);
    }
    for (const LargeBin& bin : large_) walk(bin.chain);
  }

 private:
  static constexpr std::size_t kLargeBins = 8;
  struct Bin {
    Chain active;
    Chain spare;
  };
  struct LargeBin {
    std::size_t size_bytes = 0;
    Chain chain;
  };

  [[nodiscard]] Block* take_small(std::size_t size_bytes, std::size_t* from_depot_bytes) noexcept;
  [[nodiscard]] Chain put_small(Block* block, std::size_t* to_depot_bytes) noexcept;
  [[nodiscard]] Chain put_large(Block* block) noexcept;

  const StreamRef stream_;
  StreamDepot& depot_;
  std::array<Bin, kSizeClasses> bins_{};
  std::array<std::uint64_t, kSizeClasses / 64> occupied_{};  // bins that may hold something
  std::array<LargeBin, kLargeBins> large_{};
  std::size_t next_victim_ = 0;
};

class ThreadCacheOwner;

// Aligned, as its counters are, so that no other thread's writes share its cache lines.
class alignas(64) ThreadCache {
 public:
  // More streams than this are served by the central free lists.
  static constexpr std::size_t kMaxStreams = 64;

  ThreadCache(ThreadCacheOwner& owner, std::uint64_t owner_id, std::size_t device_count,
              std::size_t limit_bytes);

  // ---- inside the gate ----
  // The stream's cache; null if it has none yet (see add).
  [[nodiscard]] StreamCache* find(StreamRef stream) noexcept;
  [[nodiscard]] Block* take(StreamCache& cache, std::size_t size_bytes) noexcept;
  // Returns what must go to the central free lists: nothing, or, when the cache is over its limit,
  // everything it held.
  [[nodiscard]] Chain put(StreamCache& cache, Block* block) noexcept;
  // Gives the stream a cache, for which there is room.
  void add(std::unique_ptr<StreamCache> cache);
  [[nodiscard]] ThreadCounters& counters(int device) noexcept {
    return counters_[static_cast<std::size_t>(device)];
  }

  // ---- inside the gate, or with the gate stopped ----
  // Everything of `device`; -1: of all.
  [[nodiscard]] Chain take_all(int device) noexcept;
  // The large blocks of `device`.
  [[nodiscard]] Chain take_large(int device) noexcept;

  template <class Visit>
  void visit(int device, const Visit& look) const {
    for (const auto& cache : streams_) {
      if (cache->stream().device == device) cache->visit(look);
    }
  }

  // ---- the owner, inside the gate or not ----
  [[nodiscard]] bool has_room() const noexcept { return streams_.size() < kMaxStreams; }

  // ---- any time ----
  // A hint: a sweep may pass this cache by.
  [[nodiscard]] bool looks_empty() const noexcept {
    return held_bytes_.load(std::memory_order_relaxed) == 0;
  }
  // The same for whoever wants large blocks only.
  [[nodiscard]] bool may_hold_large() const noexcept {
    return may_hold_large_.load(std::memory_order_relaxed);
  }
  [[nodiscard]] Gate& gate() noexcept { return gate_; }
  // The allocator it belongs to; 0 after that allocator's end.
  [[nodiscard]] std::uint64_t owner_id() const noexcept {
    return owner_id_.load(std::memory_order_relaxed);
  }

  // ---- guarded by the registry lock ----
  [[nodiscard]] ThreadCacheOwner& owner() noexcept { return *owner_; }
  void disown() noexcept { owner_id_.store(0, std::memory_order_relaxed); }
  ThreadCache* next_of_thread = nullptr;

 private:
  void hold(std::size_t bytes) noexcept;

  Gate gate_;
  std::atomic<std::uint64_t> owner_id_;
  ThreadCacheOwner* const owner_;
  const std::size_t limit_bytes_;
  std::atomic<std::size_t> held_bytes_{0};
  std::atomic<bool> may_hold_large_{false};
  StreamCache* last_ = nullptr;
  std::vector<std::unique_ptr<StreamCache>> streams_;
  std::vector<ThreadCounters> counters_;
};

}  // namespace limbo
