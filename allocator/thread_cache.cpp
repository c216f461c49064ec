#include "allocator/thread_cache.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "allocator/segment.h"

namespace limbo {
namespace {

// How many blocks a chain may hold: deep enough to make trips to the depot rare, at most 2 MiB.
std::uint16_t chain_limit(std::size_t size_bytes) noexcept {
  constexpr std::size_t kMaxBlocks = 64;
  constexpr std::size_t kMaxBytes = 2 * sizes::kMiB;
  return static_cast<std::uint16_t>(std::min(kMaxBlocks, kMaxBytes / size_bytes));
}

// How many blocks a miss may fetch ahead: half a chain, at most 128 KiB.
std::uint32_t ahead_limit(std::size_t size_bytes) noexcept {
  constexpr std::size_t kMaxBlocks = 32;
  constexpr std::size_t kMaxBytes = sizes::kMiB / 8;
  return static_cast<std::uint32_t>(std::min(kMaxBlocks, kMaxBytes / size_bytes));
}

}  // namespace

StreamCache::StreamCache(StreamRef stream, StreamDepot& depot, ThreadCounters& counters,
                         const DeviceCounters& of_device)
    : stream_(stream), depot_(depot), counters_(counters), of_device_(of_device) {}

StreamCache::Bin& StreamCache::use_bin(std::size_t index) noexcept {
  Bin& bin = bins_[index];
  if (bin.limit == 0) {
    bin.limit = chain_limit(class_size(index));
    used_bins_[index / 64] |= std::uint64_t{1} << (index % 64);
  }
  return bin;
}

Block* StreamCache::take(std::size_t size_bytes, std::size_t* from_depot_bytes) noexcept {
  if (sizes::is_large(size_bytes)) return try_take_large(size_bytes);
  return take_small(size_bytes, from_depot_bytes);
}

Block* StreamCache::take_small(std::size_t size_bytes, std::size_t* from_depot_bytes) noexcept {
  const std::size_t index = size_class(size_bytes);
  Bin& bin = bins_[index];
  if (bin.head == nullptr) {
    Chain found = std::exchange(bin.spare, Chain());
    if (found.empty()) {
      if (of_device_.flow_is_long()) return nullptr;
      found = depot_.take(index);
      if (found.empty()) return nullptr;
      of_device_.note_flow(found.count * size_bytes);
      *from_depot_bytes += found.count * size_bytes;
      use_bin(index);
    }
    bin.set_active(found);
  }
  return try_take(size_bytes);
}

std::uint32_t StreamCache::count_miss(std::size_t size_bytes) noexcept {
  Bin& bin = use_bin(size_class(size_bytes));
  const std::uint32_t ahead = std::min<std::uint32_t>(bin.ahead, ahead_limit(size_bytes));
  bin.ahead = static_cast<std::uint16_t>(std::max(1U, 2 * ahead));
  return ahead;
}

bool StreamCache::put(Block* block, std::size_t* left_bytes, ChainList* overflow) noexcept {
  return sizes::is_large(block->size_bytes) ? put_large(block, left_bytes, overflow)
                                            : put_small(block, left_bytes, overflow);
}

bool StreamCache::put_small(Block* block, std::size_t* left_bytes, ChainList* overflow) noexcept {
  const std::size_t index = size_class(block->size_bytes);
  Bin& bin = use_bin(index);
  if (bin.count >= bin.limit) {
    if (!bin.spare.empty()) {
      if (!depot_.put(index, bin.spare)) {
        if (overflow == nullptr) return false;
        overflow->push(bin.spare);
      }
      *left_bytes += bin.spare.count * block->size_bytes;
    }
    bin.spare = bin.active();
    bin.set_active({});
  }
  return try_put(block);  // there is room now
}

bool StreamCache::put_large(Block* block, std::size_t* left_bytes, ChainList* overflow) noexcept {
  if (try_put_large(block)) return true;
  std::size_t chosen = kLargeBins;
  for (std::size_t i = 0; i < kLargeBins && chosen == kLargeBins; ++i) {
    if (large_[i].empty()) chosen = i;
  }
  if (chosen == kLargeBins) {
    if (overflow == nullptr) return false;
    chosen = next_victim_;
    next_victim_ = (next_victim_ + 1) % kLargeBins;
    *left_bytes += large_[chosen].count * large_sizes_[chosen];
    overflow->push(std::exchange(large_[chosen], Chain()));
  }
  large_sizes_[chosen] = block->size_bytes;
  large_[chosen].push(block);
  return true;
}

std::size_t StreamCache::take_all(ChainList& chains) noexcept {
  std::size_t bytes = take_large(chains);
  for (std::size_t group = 0; group < used_bins_.size(); ++group) {
    for (std::uint64_t bits = used_bins_[group]; bits != 0; bits &= bits - 1) {
      const std::size_t index = group * 64 + static_cast<std::size_t>(std::countr_zero(bits));
      Bin& bin = bins_[index];
      chains.push(bin.active());
      chains.push(bin.spare);
      bytes += (bin.count + bin.spare.count) * class_size(index);
      bin = {};
    }
    used_bins_[group] = 0;
  }
  return bytes;
}

std::size_t StreamCache::take_large(ChainList& chains) noexcept {
  std::size_t bytes = 0;
  for (std::size_t i = 0; i < kLargeBins; ++i) {
    const Chain chain = std::exchange(large_[i], Chain());
    chains.push(chain);
    bytes += chain.count * std::exchange(large_sizes_[i], 0);
  }
  return bytes;
}

bool StreamCache::may_hold_large() const noexcept {
  return std::any_of(large_sizes_.begin(), large_sizes_.end(),
                     [](std::size_t size_bytes) { return size_bytes != 0; });
}

ThreadCache::ThreadCache(ThreadCacheOwner& owner, std::uint64_t owner_id, std::size_t device_count,
                         std::size_t limit_bytes)
    : owner_id_(owner_id),
      limit_bytes_(limit_bytes),
      largest_bytes_(limit_bytes / 4),
      owner_(&owner),
      counters_(device_count) {}

StreamCache* ThreadCache::look_up(StreamRef stream) noexcept {
  for (const auto& cache : streams_) {
    if (cache->stream() == stream) return last_ = cache.get();
  }
  return nullptr;
}

void ThreadCache::add(std::unique_ptr<StreamCache> cache) {
  streams_.push_back(std::move(cache));
}

Block* ThreadCache::take(StreamCache& cache, std::size_t size_bytes) noexcept {
  std::size_t from_depot_bytes = 0;
  Block* block = cache.take(size_bytes, &from_depot_bytes);
  if (block == nullptr) return nullptr;
  hold(held_bytes_.load(std::memory_order_relaxed) + from_depot_bytes - size_bytes);
  return block;
}

bool ThreadCache::put(StreamCache& cache, Block* block, ChainList* overflow) noexcept {
  const std::size_t held = held_bytes_.load(std::memory_order_relaxed);
  if (block->size_bytes > largest_bytes_ || held + block->size_bytes > limit_bytes_) {
    if (overflow == nullptr) return false;
    Chain alone;
    alone.push(block);
    overflow->push(alone);
    return true;
  }
  std::size_t left_bytes = 0;
  if (!cache.put(block, &left_bytes, overflow)) return false;
  hold(held + block->size_bytes - left_bytes);
  // Written rarely: it stays true until somebody takes the large ones.
  if (sizes::is_large(block->size_bytes) && !may_hold_large()) {
    may_hold_large_.store(true, std::memory_order_relaxed);
  }
  return true;
}

void ThreadCache::take_large(int device, ChainList& chains) noexcept {
  std::size_t taken_bytes = 0;
  bool holds = false;
  for (const auto& cache : streams_) {
    if (cache->stream().device == device) {
      taken_bytes += cache->take_large(chains);
    } else {
      holds = holds || cache->may_hold_large();
    }
  }
  hold(held_bytes_.load(std::memory_order_relaxed) - taken_bytes);
  may_hold_large_.store(holds, std::memory_order_relaxed);
}

void ThreadCache::take_all(int device, ChainList& chains) noexcept {
  std::size_t taken_bytes = 0;
  for (const auto& cache : streams_) {
    if (device < 0 || cache->stream().device == device) taken_bytes += cache->take_all(chains);
  }
  hold(held_bytes_.load(std::memory_order_relaxed) - taken_bytes);
}

}  // namespace limbo
