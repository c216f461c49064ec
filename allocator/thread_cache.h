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
  // `counters` are the owner's for the stream's device, whose own are `of_device`.
  StreamCache(StreamRef stream, StreamDepot& depot, ThreadCounters& counters,
              const DeviceCounters& of_device);

  [[nodiscard]] StreamRef stream() const noexcept { return stream_; }
  [[nodiscard]] ThreadCounters& counters() noexcept { return counters_; }
  [[nodiscard]] const DeviceCounters& of_device() const noexcept { return of_device_; }

  // ---- hits ----
  // A block of exactly this size that is at hand; null if none is.
  [[nodiscard]] Block* try_take(std::size_t size_bytes) noexcept {
    if (sizes::is_large(size_bytes)) [[unlikely]] {
      return try_take_large(size_bytes);
    }
    Bin& bin = bins_[size_class(size_bytes)];
    Block* block = bin.head;
    if (block != nullptr) [[likely]] {
      bin.head = block->link;
      --bin.count;
      // What another thread freed is in that one's caches still: fetch it before it is wanted. (Not
      // null: a processor looks for the page.)
      if (bin.head != nullptr) prefetch_to_write(bin.head);
    }
    return block;
  }
  // False where there is no room for the block, or its size has none yet.
  [[nodiscard]] bool try_put(Block* block) noexcept {
    if (sizes::is_large(block->size_bytes)) [[unlikely]] {
      return try_put_large(block);
    }
    Bin& bin = bins_[size_class(block->size_bytes)];
    if (bin.count >= bin.limit) [[unlikely]] {
      return false;
    }
    block->link = bin.head;
    bin.head = block;
    ++bin.count;
    return true;
  }

  // ---- what the depot is needed for ----
  // A block of exactly this size, from here or from the depot; null if there is none.
  // `*from_depot_bytes` is raised by what came from the depot.
  [[nodiscard]] Block* take(std::size_t size_bytes, std::size_t* from_depot_bytes) noexcept;

  // A small size was missed here and in the heap's free memory found, which other threads wanted too:
  // how many blocks more to fetch at once. None at the first miss since the caches were emptied, then
  // one, and twice as many each time: a size that is wanted again and again soon costs few locks, and
  // for one that is not nothing is cut.
  [[nodiscard]] std::uint32_t count_miss(std::size_t size_bytes) noexcept;

  // Takes the block in. What no longer fits goes to the depot, or is added to `*overflow`, for the
  // central free lists; where `overflow` is null it is false, and nothing has happened.
  // `*left_bytes` is raised by what went.
  [[nodiscard]] bool put(Block* block, std::size_t* left_bytes, ChainList* overflow) noexcept;

  // Adds everything, or the large blocks, to `chains`, without walking along them: somebody may be
  // kept out of the gate meanwhile. Returns how many bytes that is.
  std::size_t take_all(ChainList& chains) noexcept;
  std::size_t take_large(ChainList& chains) noexcept;
  // Whether it has taken in any since take_large.
  [[nodiscard]] bool may_hold_large() const noexcept;

  template <class Visit>
  void visit(const Visit& look) const {
    const auto walk = [&](const Chain& chain) {
      for (Block* block = chain.head; block != nullptr; block = block->link) look(block);
    };
    for (const Bin& bin : bins_) {
      walk(bin.active());
      walk(bin.spare);
    }
    for (const Chain& chain : large_) walk(chain);
  }

 private:
  static constexpr std::size_t kLargeBins = 16;
  struct Bin {
    // The chain in use, and how many blocks a chain may hold: 0 until the bin is used and listed in
    // used_bins_.
    Block* head = nullptr;
    std::uint32_t count = 0;
    std::uint16_t limit = 0;
    std::uint16_t ahead = 0;  // what the next miss fetches more: see count_miss
    Chain spare;

    [[nodiscard]] Chain active() const noexcept { return {head, count}; }
    void set_active(const Chain& chain) noexcept {
      head = chain.head;
      count = chain.count;
    }
  };
  static_assert(sizeof(Bin) == 32, "two to a cache line");

  [[nodiscard]] Block* try_take_large(std::size_t size_bytes) noexcept {
    for (std::size_t i = 0; i < kLargeBins; ++i) {
      if (large_sizes_[i] == size_bytes && !large_[i].empty()) return large_[i].pop();
    }
    return nullptr;
  }
  [[nodiscard]] bool try_put_large(Block* block) noexcept {
    for (std::size_t i = 0; i < kLargeBins; ++i) {
      if (large_sizes_[i] != block->size_bytes) continue;
      large_[i].push(block);
      return true;
    }
    return false;
  }

  [[nodiscard]] Block* take_small(std::size_t size_bytes, std::size_t* from_depot_bytes) noexcept;
  [[nodiscard]] bool put_small(Block* block, std::size_t* left_bytes, ChainList* overflow) noexcept;
  [[nodiscard]] bool put_large(Block* block, std::size_t* left_bytes, ChainList* overflow) noexcept;
  Bin& use_bin(std::size_t index) noexcept;

  const StreamRef stream_;
  StreamDepot& depot_;
  ThreadCounters& counters_;
  const DeviceCounters& of_device_;
  std::array<std::size_t, kLargeBins> large_sizes_{};
  std::array<Chain, kLargeBins> large_{};
  std::size_t next_victim_ = 0;
  std::array<std::uint64_t, kSizeClasses / 64> used_bins_{};
  std::array<Bin, kSizeClasses> bins_{};
};

class ThreadCacheOwner;

// Aligned, as its counters are, so that no other thread's writes share its cache lines.
class alignas(128) ThreadCache {
 public:
  // More streams than this are served by the central free lists.
  static constexpr std::size_t kMaxStreams = 64;

  ThreadCache(ThreadCacheOwner& owner, std::uint64_t owner_id, std::size_t device_count,
              std::size_t limit_bytes);

  // ---- inside the gate ----
  // The stream's cache; null if it has none yet (see add).
  [[nodiscard]] StreamCache* find(StreamRef stream) noexcept {
    if (last_ != nullptr && last_->stream() == stream) [[likely]] {
      return last_;
    }
    return look_up(stream);
  }
  // Hits: null and false where the functions below them are to be asked.
  [[nodiscard]] Block* try_take(StreamCache& cache, std::size_t size_bytes) noexcept {
    Block* block = cache.try_take(size_bytes);
    if (block != nullptr) [[likely]] {
      hold(held_bytes_.load(std::memory_order_relaxed) - size_bytes);
    }
    return block;
  }
  [[nodiscard]] bool try_put(StreamCache& cache, Block* block) noexcept {
    const std::size_t held = held_bytes_.load(std::memory_order_relaxed) + block->size_bytes;
    if (held > limit_bytes_ || block->size_bytes > largest_bytes_ || !cache.try_put(block))
        [[unlikely]] {
      return false;
    }
    hold(held);
    return true;
  }
  [[nodiscard]] Block* take(StreamCache& cache, std::size_t size_bytes) noexcept;
  // Free blocks that are in no list would be missed by whoever looks through all of them. So what has
  // to leave for the central free lists leaves under the heap lock: with it held `overflow` is where
  // such blocks are added, maybe `block` itself. Without it `overflow` is null, and false says that
  // something would have to leave; nothing has happened then.
  [[nodiscard]] bool put(StreamCache& cache, Block* block, ChainList* overflow) noexcept;
  // Gives the stream a cache, for which there is room.
  void add(std::unique_ptr<StreamCache> cache);
  [[nodiscard]] ThreadCounters& counters(int device) noexcept {
    return counters_[static_cast<std::size_t>(device)];
  }

  // ---- inside the gate, or with the gate stopped ----
  // Adds to `chains`: everything of `device` (-1: of all); the large blocks of `device`.
  void take_all(int device, ChainList& chains) noexcept;
  void take_large(int device, ChainList& chains) noexcept;

  template <class Visit>
  void visit(int device, const Visit& look) const {
    for (const auto& cache : streams_) {
      if (cache->stream().device == device) cache->visit(look);
    }
  }

  // ---- the owner, inside the gate or not ----
  [[nodiscard]] bool has_room() const noexcept { return streams_.size() < kMaxStreams; }

  // ---- any time ----
  // Whether everything must leave before a block of this size comes in.
  [[nodiscard]] bool is_full_for(std::size_t size_bytes) const noexcept {
    return size_bytes <= largest_bytes_ && held_bytes() + size_bytes > limit_bytes_;
  }
  [[nodiscard]] std::size_t held_bytes() const noexcept {
    return held_bytes_.load(std::memory_order_relaxed);
  }
  // A hint: whoever wants large blocks only may pass this cache by.
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
  [[nodiscard]] StreamCache* look_up(StreamRef stream) noexcept;
  // Only the owner calls it, or whoever has stopped it.
  void hold(std::size_t bytes) noexcept { held_bytes_.store(bytes, std::memory_order_relaxed); }

  // What a hit reads and writes, on one cache line.
  Gate gate_;
  std::atomic<std::uint64_t> owner_id_;
  StreamCache* last_ = nullptr;
  std::atomic<std::size_t> held_bytes_{0};
  const std::size_t limit_bytes_;
  const std::size_t largest_bytes_;  // of a block: larger ones would push out everything else

  ThreadCacheOwner* const owner_;
  std::atomic<bool> may_hold_large_{false};
  std::vector<std::unique_ptr<StreamCache>> streams_;
  std::vector<ThreadCounters> counters_;
};

}  // namespace limbo
