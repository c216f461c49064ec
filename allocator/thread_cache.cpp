#include "allocator/thread_cache.h"

#include <algorithm>
#include <bit>

#include "allocator/segment.h"

namespace limbo {
namespace {

// How many blocks a chain may hold: deep enough to make trips to the depot rare, at most 2 MiB.
std::uint32_t chain_limit(std::size_t size_bytes) noexcept {
  constexpr std::size_t kMaxBlocks = 64;
  constexpr std::size_t kMaxBytes = 2 * sizes::kMiB;
  return static_cast<std::uint32_t>(std::min(kMaxBlocks, kMaxBytes / size_bytes));
}

}  // namespace

Block* StreamCache::take(std::size_t size_bytes, std::size_t* from_depot_bytes) noexcept {
  if (!sizes::is_large(size_bytes)) return take_small(size_bytes, from_depot_bytes);
  for (LargeBin& bin : large_) {
    if (bin.size_bytes == size_bytes && !bin.chain.empty()) return bin.chain.pop();
  }
  return nullptr;
}

Block* StreamCache::take_small(std::size_t size_bytes, std::size_t* from_depot_bytes) noexcept {
  Bin& bin = bins_[size_class(size_bytes)];
  if (bin.active.empty()) {
    std::swap(bin.active, bin.spare);
    if (bin.active.empty()) {
      bin.active = depot_.take(size_class(size_bytes));
      if (bin.active.empty()) return nullptr;
      *from_depot_bytes += bin.active.count * size_bytes;
      occupied_[size_class(size_bytes) / 64] |= std::uint64_t{1} << (size_class(size_bytes) % 64);
    }
  }
  return bin.active.pop();
}

Chain StreamCache::put(Block* block, std::size_t* to_depot_bytes) noexcept {
  if (sizes::is_large(block->size_bytes)) return put_large(block);
  return put_small(block, to_depot_bytes);
}

Chain StreamCache::put_small(Block* block, std::size_t* to_depot_bytes) noexcept {
  const std::size_t index = size_class(block->size_bytes);
  Bin& bin = bins_[index];
  Chain overflow;
  if (bin.active.count >= chain_limit(block->size_bytes)) {
    if (!bin.spare.empty()) {
      const std::size_t bytes = bin.spare.count * block->size_bytes;
      try {
        depot_.put(index, bin.spare);
        *to_depot_bytes += bytes;
      } catch (...) {
        overflow = bin.spare;  // no host memory for the depot: the central list needs none here
      }
    }
    bin.spare = bin.active;
    bin.active = {};
  }
  bin.active.push(block);
  occupied_[index / 64] |= std::uint64_t{1} << (index % 64);
  return overflow;
}

Chain StreamCache::put_large(Block* block) noexcept {
  LargeBin* chosen = nullptr;
  for (LargeBin& bin : large_) {
    if (bin.size_bytes == block->size_bytes) {
      chosen = &bin;
      break;
    }
    if (chosen == nullptr && bin.chain.empty()) chosen = &bin;
  }
  Chain overflow;
  if (chosen == nullptr) {
    chosen = &large_[next_victim_];
    next_victim_ = (next_victim_ + 1) % kLargeBins;
    overflow = chosen->chain;
    chosen->chain = {};
  }
  chosen->size_bytes = block->size_bytes;
  chosen->chain.push(block);
  return overflow;
}

Chain StreamCache::take_all() noexcept {
  Chain all;
  for (std::size_t group = 0; group < occupied_.size(); ++group) {
    for (std::uint64_t bits = occupied_[group]; bits != 0; bits &= bits - 1) {
      Bin& bin = bins_[group * 64 + static_cast<std::size_t>(std::countr_zero(bits))];
      all.append(bin.active);
      all.append(bin.spare);
    }
    occupied_[group] = 0;
  }
  for (LargeBin& bin : large_) all.append(bin.chain);
  return all;
}

Chain StreamCache::take_large() noexcept {
  Chain all;
  for (LargeBin& bin : large_) all.append(bin.chain);
  return all;
}

bool StreamCache::holds_large() const noexcept {
  return std::any_of(large_.begin(), large_.end(),
                     [](const LargeBin& bin) { return !bin.chain.empty(); });
}

ThreadCache::ThreadCache(ThreadCacheOwner& owner, std::uint64_t owner_id, std::size_t device_count,
                         std::size_t limit_bytes)
    : owner_id_(owner_id), owner_(&owner), limit_bytes_(limit_bytes), counters_(device_count) {}

StreamCache* ThreadCache::find(StreamRef stream) noexcept {
  if (last_ != nullptr && last_->stream() == stream) return last_;
  for (const auto& cache : streams_) {
    if (cache->stream() == stream) return last_ = cache.get();
  }
  return nullptr;
}

void ThreadCache::add(std::unique_ptr<StreamCache> cache) {
  streams_.push_back(std::move(cache));
}

void ThreadCache::hold(std::size_t bytes) noexcept {
  held_bytes_.store(bytes, std::memory_order_relaxed);  // only the owner, or whoever stopped it
}

Block* ThreadCache::take(StreamCache& cache, std::size_t size_bytes) noexcept {
  std::size_t from_depot_bytes = 0;
  Block* block = cache.take(size_bytes, &from_depot_bytes);
  if (block == nullptr) return nullptr;
  hold(held_bytes_.load(std::memory_order_relaxed) + from_depot_bytes - size_bytes);
  return block;
}

Chain ThreadCache::put(StreamCache& cache, Block* block) noexcept {
  const std::size_t held = held_bytes_.load(std::memory_order_relaxed);
  Chain overflow;
  if (block->size_bytes > limit_bytes_ / 4) {
    overflow.push(block);  // one of these would push out everything else
    return overflow;
  }
  if (held + block->size_bytes > limit_bytes_) {
    overflow = take_all(-1);
    overflow.push(block);
    return overflow;
  }
  std::size_t left_bytes = 0;
  overflow = cache.put(block, &left_bytes);
  for (const Block* out = overflow.head; out != nullptr; out = out->link) {
    left_bytes += out->size_bytes;
  }
  hold(held + block->size_bytes - left_bytes);
  // Written rarely: it stays true until somebody takes the large ones.
  if (sizes::is_large(block->size_bytes) && !may_hold_large()) {
    may_hold_large_.store(true, std::memory_order_relaxed);
  }
  return overflow;
}

Chain ThreadCache::take_large(int device) noexcept {
  Chain all;
  std::size_t taken_bytes = 0;
  bool holds = false;
  for (const auto& cache : streams_) {
    if (cache->stream().device != device) {
      holds = holds || cache->holds_large();
      continue;
    }
    Chain part = cache->take_large();
    for (const Block* block = part.head; block != nullptr; block = block->link) {
      taken_bytes += block->size_bytes;
    }
    all.append(part);
  }
  hold(held_bytes_.load(std::memory_order_relaxed) - taken_bytes);
  may_hold_large_.store(holds, std::memory_order_relaxed);
  return all;
}

Chain ThreadCache::take_all(int device) noexcept {
  Chain all;
  std::size_t taken_bytes = 0;
  for (const auto& cache : streams_) {
    if (device >= 0 && cache->stream().device != device) continue;
    Chain part = cache->take_all();
    for (const Block* block = part.head; block != nullptr; block = block->link) {
      taken_bytes += block->size_bytes;
    }
    all.append(part);
  }
  hold(held_bytes_.load(std::memory_order_relaxed) - taken_bytes);
  return all;
}

}  // namespace limbo
