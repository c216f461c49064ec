// Looking at everything at once: statistics, snapshots, the largest free block.
//
// All gates are stopped and the heap lock is held: nothing moves, so what is seen is one moment.
#include <algorithm>
#include <functional>

#include "allocator/allocator_impl.h"

namespace limbo {
namespace {

// Handed out and not freed; or freed and still waiting.
bool is_allocated(BlockState state) noexcept {
  return state == BlockState::kAllocated;
}
bool is_active(BlockState state) noexcept {
  return is_allocated(state) || state == BlockState::kWaiting || state == BlockState::kLimbo;
}

SegmentView look_at(const Segment& segment, ContextLevel contexts) {
  SegmentView seen;
  seen.base = segment.base;
  seen.size_bytes = segment.size_bytes;
  seen.stream = segment.stream;
  seen.large = segment.large;
  seen.pool = segment.pool->id;
  seen.registration_counter = segment.registration_counter;
  for (const Block* block = segment.first; block != nullptr; block = block->next) {
    SegmentView::BlockState one;
    const BlockState state = block->state();
    one.size_bytes = block->size_bytes;
    one.allocated = is_allocated(state);
    one.active = is_active(state);
    if (one.allocated) seen.allocated_bytes += one.size_bytes;
    if (one.active) {
      one.requested_bytes = block->requested_bytes.load(std::memory_order_relaxed);
      seen.active_bytes += one.size_bytes;
      seen.requested_bytes += one.requested_bytes;
      one.context = block->context;
    }
    seen.blocks.push_back(std::move(one));
  }
  if (contexts >= ContextLevel::kAlloc || seen.active_bytes != 0) seen.context = segment.context;
  return seen;
}

}  // namespace

DeviceStats Allocator::Impl::read_stats(DeviceHeap& at) {
  DeviceStats stats;
  at.counters.fill(stats);
  for (const auto& [piece_id, segment] : at.segments) {
    const Piece& piece = segment->piece;
    if (piece.kept_for_readers && piece.blocks_out == 0) {
      stats.held_for_readers_bytes += static_cast<std::int64_t>(piece.size_bytes);
    }
    if (segment->pool->is_default()) continue;
    stats.private_reserved_bytes += static_cast<std::int64_t>(segment->size_bytes);
    for (const Block* block = segment->first; block != nullptr; block = block->next) {
      if (!is_allocated(block->state())) continue;
      stats.private_allocated_bytes += static_cast<std::int64_t>(block->size_bytes);
    }
  }
  return stats;
}

DeviceStats Allocator::Impl::stats(DeviceHeap& at) {
  const StoppedGates stopped(*this);
  const std::lock_guard lock(at.mutex);
  return read_stats(at);
}

DeviceStats Allocator::stats(int device) {
  return impl_->stats(impl_->heap(device));
}

MemoryTotals Allocator::totals(int device) const {
  const DeviceHeap& at = impl_->heap(device);
  const std::lock_guard lock(at.mutex);
  // The threads go on: a block may be counted where it was freed and not yet where it came from.
  return {std::max<std::int64_t>(0, at.counters.level(kBytes)), at.counters.level(kReserved)};
}

void Allocator::reset_peak_stats(int device) {
  DeviceHeap& at = impl_->heap(device);
  const Impl::StoppedGates stopped(*impl_);
  const std::lock_guard lock(at.mutex);
  at.counters.reset_peaks();
}

void Allocator::reset_accumulated_stats(int device) {
  DeviceHeap& at = impl_->heap(device);
  const Impl::StoppedGates stopped(*impl_);
  const std::lock_guard lock(at.mutex);
  at.counters.reset_accumulated();
}

MemorySnapshot Allocator::Impl::take_snapshot(int device_index, PoolId pool, bool with_traces) {
  if (device_index >= 0) static_cast<void>(heap(device_index));
  MemorySnapshot seen;
  {
    const StoppedGates stopped(*this);
    for (const auto& at : heaps) {
      if (device_index >= 0 && at->device != device_index) continue;
      const std::lock_guard lock(at->mutex);
      if (with_traces) seen.traces.push_back(at->trace.entries());
      std::size_t active_bytes = 0;
      for (const auto& [piece_id, segment] : at->segments) {
        if (!pool.is_default() && segment->pool->id != pool) continue;
        seen.segments.push_back(look_at(*segment, at->trace.contexts()));
        active_bytes += seen.segments.back().active_bytes;
      }
      at->trace.record(TraceAction::kSnapshot, 0, active_bytes, nullptr, pool, nullptr);
    }
  }
  for (const auto& at : heaps) at->trace.tell();
  std::sort(seen.segments.begin(), seen.segments.end(),
            [](const SegmentView& left, const SegmentView& right) {
              return std::less<>{}(left.base, right.base);
            });
  return seen;
}

std::vector<SegmentView> Allocator::snapshot(int device, PoolId pool) {
  return impl_->take_snapshot(device, pool, false).segments;
}

MemorySnapshot Allocator::snapshot_with_traces(PoolId pool) {
  return impl_->take_snapshot(-1, pool, true);
}

std::size_t Allocator::largest_free_block_bytes(int device) {
  DeviceHeap& at = impl_->heap(device);
  impl_->reclaim_caches(at);
  const std::lock_guard lock(at.mutex);
  std::size_t largest = 0;
  const auto look_into = [&](const Pool& pool) {
    largest = std::max(largest, pool.small.largest_bytes());
    for (const Block* block : pool.large) largest = std::max(largest, block->size_bytes);
  };
  look_into(*at.default_pool);
  for (const auto& [id, pool] : at.pools) look_into(*pool);
  return largest;
}

}  // namespace limbo
