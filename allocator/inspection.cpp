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

SegmentView look_at(const Segment& segment) {
  SegmentView seen;
  seen.base = segment.base;
  seen.size_bytes = segment.size_bytes;
  seen.stream = segment.stream;
  seen.large = segment.large;
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
    }
    seen.blocks.push_back(one);
  }
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

std::vector<SegmentView> Allocator::snapshot(int device) {
  if (device >= 0) static_cast<void>(impl_->heap(device));
  std::vector<SegmentView> views;
  const Impl::StoppedGates stopped(*impl_);
  for (const auto& at : impl_->heaps) {
    if (device >= 0 && at->device != device) continue;
    const std::lock_guard lock(at->mutex);
    for (const auto& [piece_id, segment] : at->segments) views.push_back(look_at(*segment));
  }
  std::sort(views.begin(), views.end(), [](const SegmentView& left, const SegmentView& right) {
    return std::less<>{}(left.base, right.base);
  });
  return views;
}

std::size_t Allocator::largest_free_block_bytes(int device) {
  DeviceHeap& at = impl_->heap(device);
  impl_->reclaim_caches(at);
  const std::lock_guard lock(at.mutex);
  std::size_t largest = 0;
  for (const FreeList* list : {&at.default_pool->small, &at.default_pool->large}) {
    for (const Block* block : *list) largest = std::max(largest, block->size_bytes);
  }
  return largest;
}

}  // namespace limbo
