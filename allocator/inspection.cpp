// Looking at everything at once: statistics, snapshots, the largest free block.
//
// All gates are stopped and the heap lock is held: nothing moves, so what is seen is one moment. A
// snapshot stops the gates only to read the blocks' words: how segments are cut is the heap lock's,
// and the history's entries are copied when that, too, has been given up.
#include <algorithm>
#include <functional>
#include <optional>

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

// One device's segments, seen in steps.
class Look {
 public:
  Look(const DeviceHeap& at, PoolId pool, std::vector<SegmentView>& into)
      : at_(at), pool_(pool), into_(into), first_(into.size()) {}

  // Heap lock held: what does not change as long as it is.
  void at_segments() {
    for (const auto& [piece_id, segment] : at_.segments) {
      if (!pool_.is_default() && segment->pool->id != pool_) continue;
      if (segment->passage != Passage::kGoing) at_segment(*segment);
    }
    moments_.resize(blocks_.size());
  }

  // Heap lock held and all gates stopped: what hits change.
  void at_words() noexcept {
    for (std::size_t index = 0; index < blocks_.size(); ++index) {
      const Block& block = *blocks_[index];
      moments_[index] = {block.state(), block.requested_bytes.load(std::memory_order_relaxed)};
    }
  }

  // Puts both together; how many bytes are active.
  std::size_t finish() {
    std::size_t active_bytes = 0;
    auto moment = moments_.begin();
    for (auto seen = into_.begin() + static_cast<std::ptrdiff_t>(first_); seen != into_.end();
         ++seen) {
      for (SegmentView::BlockState& one : seen->blocks) {
        one.allocated = is_allocated(moment->state);
        one.active = is_active(moment->state);
        if (one.allocated) seen->allocated_bytes += one.size_bytes;
        if (one.active) {
          one.requested_bytes = moment->requested_bytes;
          seen->active_bytes += one.size_bytes;
          seen->requested_bytes += one.requested_bytes;
        }
        ++moment;
      }
      if (at_.trace.contexts() < ContextLevel::kAlloc && seen->active_bytes == 0) {
        seen->context.reset();
      }
      active_bytes += seen->active_bytes;
    }
    return active_bytes;
  }

 private:
  struct Moment {
    BlockState state = BlockState::kUnused;
    std::size_t requested_bytes = 0;
  };

  void at_segment(const Segment& segment) {
    SegmentView& seen = into_.emplace_back();
    seen.base = segment.base;
    seen.size_bytes = segment.size_bytes;
    seen.stream = segment.stream;
    seen.large = segment.large;
    seen.pool = segment.pool->id;
    seen.registration_counter = segment.registration_counter;
    seen.context = segment.context;
    for (const Block* block = segment.first; block != nullptr; block = block->next) {
      SegmentView::BlockState& one = seen.blocks.emplace_back();
      one.size_bytes = block->size_bytes;
      one.context = block->context;  // only active ones have one
      blocks_.push_back(block);
    }
  }

  const DeviceHeap& at_;
  const PoolId pool_;
  std::vector<SegmentView>& into_;
  const std::size_t first_;
  std::vector<const Block*> blocks_;
  std::vector<Moment> moments_;
};

}  // namespace

DeviceStats Allocator::Impl::read_stats(DeviceHeap& at) {
  DeviceStats stats;
  at.counters.fill(stats);
  for (const auto& [piece_id, segment] : at.segments) {
    if (segment->passage == Passage::kGoing) continue;
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

void Allocator::Impl::look(DeviceHeap& at, PoolId pool, std::vector<SegmentView>& into,
                           TraceRing::View* entries) {
  std::optional<StoppedGates> stopped(std::in_place, *this, StoppedGates::Later{});
  const std::lock_guard lock(at.mutex);
  Look seen(at, pool, into);
  seen.at_segments();
  stopped->stop_all();
  seen.at_words();
  stopped.reset();
  if (entries != nullptr) *entries = at.trace.entries();
  at.trace.record(TraceAction::kSnapshot, 0, seen.finish(), nullptr, pool, nullptr);
}

MemorySnapshot Allocator::Impl::take_snapshot(int device_index, PoolId pool, bool with_traces) {
  if (device_index >= 0) static_cast<void>(heap(device_index));
  MemorySnapshot seen;
  for (const auto& at : heaps) {
    if (device_index >= 0 && at->device != device_index) continue;
    TraceRing::View entries;
    look(*at, pool, seen.segments, with_traces ? &entries : nullptr);
    if (with_traces) seen.traces.push_back(entries.copy());
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
