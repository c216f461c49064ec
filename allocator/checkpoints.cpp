// Going back is one step under the heap lock, after everything that could refuse it was looked at.
// All blocks of private pools are freed, pinned and recorded under that lock, so none of them
// changes meanwhile.
#include "allocator/checkpoints.h"

#include <sstream>
#include <utility>

#include "allocator/allocator_impl.h"
#include "allocator/error.h"

namespace limbo {
namespace {

template <class... Parts>
[[noreturn]] void refuse_checkpoint(const char* advice, const Parts&... parts) {
  std::ostringstream text;
  (text << ... << parts);
  throw Error(ErrorCode::kBadArgument, text.str(), advice);
}

Checkpoint::SegmentLayout layout_of(const Segment& segment) {
  Checkpoint::SegmentLayout layout;
  layout.piece_id = segment.piece.id;
  for (const Block* block = segment.first; block != nullptr; block = block->next) {
    const bool allocated = block->state() == BlockState::kAllocated;
    // One that is freed and still waits will be free memory, and merged, by the time of going back.
    if (!allocated && !layout.blocks.empty() && !layout.blocks.back().allocated) {
      layout.blocks.back().size_bytes += block->size_bytes;
      continue;
    }
    const std::size_t requested_bytes =
        allocated ? block->requested_bytes.load(std::memory_order_relaxed) : 0;
    layout.blocks.push_back({block->size_bytes, requested_bytes, allocated});
  }
  return layout;
}

// What another thread gets from the driver at the moment is no part of the pool yet.
bool belongs(const Segment& segment, const std::shared_ptr<Pool>& pool) {
  return segment.pool == pool && segment.passage != Passage::kComing;
}

// Nor is what somebody gives back to the driver, or may: of that nothing is in use, and where it stays
// it is as free as what the pool got later.
bool belongs_for_good(const Segment& segment, const std::shared_ptr<Pool>& pool) {
  return belongs(segment, pool) && segment.first->state() != BlockState::kInTransit;
}

// A block can be taken from its owner when nothing but that owner has to do with it.
void require_takeable(const Block& block) {
  const std::uint64_t word = block.word.load(std::memory_order_acquire);
  const BlockState state = block_word::state(word);
  if (state == BlockState::kFree) return;
  const void* where = block.data();
  if (block_word::pins(word) != 0) {
    refuse_checkpoint("Release what was lent first.", "The block at ", where,
                      " is lent to other processes.");
  }
  if (state == BlockState::kAllocated && block.users == nullptr) return;
  if (state == BlockState::kInTransit) {
    refuse_checkpoint("Try again.", "The segment at ", where, " is on its way back to the driver.");
  }
  refuse_checkpoint(
      "Let that work end first; record_stream is not for memory that a checkpoint goes back over.",
      "The block at ", where, " is marked by record_stream: another stream's work may use it.");
}

}  // namespace

// ---- the heap's part ------------------------------------------------------------------------

void DeviceHeap::free_all(Segment& segment, std::vector<void*>& freed) noexcept {
  Chain allocated;  // one that is handed out is in no other
  for (Block* block = segment.first; block != nullptr; block = block->next) {
    if (block->state() == BlockState::kAllocated) allocated.push(block);
  }
  while (!allocated.empty()) {
    Block* block = allocated.pop();
    freed.push_back(block->data());
    block->set_state(BlockState::kWaiting);
    end_allocated(block);
    end_active(block);
  }
}

void DeviceHeap::lay_out(Segment& segment, const Checkpoint::SegmentLayout& layout,
                         std::vector<void*>& allocated) noexcept {
  Block* block = segment.first;
  for (const Checkpoint::BlockLayout& wanted : layout.blocks) {
    remove_free(block);
    if (wanted.size_bytes < block->size_bytes) {
      split_off(block, wanted.size_bytes, unused_nodes_.pop());
    }
    if (wanted.allocated) {
      allocated.push_back(hand_over(block, wanted.requested_bytes));
    } else {
      insert_free(block);
    }
    block = block->next;
  }
}

// ---- the way in -----------------------------------------------------------------------------

// The pool, in use.
std::shared_ptr<Pool> Allocator::Impl::pool_for_checkpoint(DeviceHeap& at, PoolId id) {
  std::shared_ptr<Pool> pool = known_pool(at, id);
  if (pool->uses != 0) return pool;
  refuse_checkpoint("Keep a use of it for as long as its checkpoints are needed.", "The pool (",
                    id.first, ", ", id.second, ") on device ", at.device,
                    " was released: its memory may go any time.");
}

std::shared_ptr<const Checkpoint> Allocator::take_checkpoint(int device, PoolId id) {
  DeviceHeap& at = impl_->heap(device);
  impl_->complete_events(at);
  auto taken = std::make_shared<Checkpoint>();
  taken->device = device;
  taken->pool = id;
  const std::lock_guard lock(at.mutex);
  const std::shared_ptr<Pool> pool = Impl::pool_for_checkpoint(at, id);
  for (const auto& [piece_id, segment] : at.segments) {
    if (belongs_for_good(*segment, pool)) taken->segments.push_back(layout_of(*segment));
  }
  return taken;
}

CheckpointDelta Allocator::restore_checkpoint(const Checkpoint& checkpoint) {
  DeviceHeap& at = impl_->heap(checkpoint.device);
  const TraceCall call(at.trace, ContextLevel::kState);
  CheckpointDelta delta;
  std::shared_ptr<Pool> pool;
  {
    const std::lock_guard lock(at.mutex);
    pool = Impl::pool_for_checkpoint(at, checkpoint.pool);
  }
  // Events of what was freed in a capture are recorded only now.
  impl_->wait_for_events(at, pool.get(), Impl::Sync::kUncounted);
  const std::lock_guard lock(at.mutex);
  if (Impl::pool_for_checkpoint(at, checkpoint.pool) != pool) {
    refuse_checkpoint("Keep a use of it for as long as its checkpoints are needed.", "The pool (",
                      pool->id.first, ", ", pool->id.second, ") on device ", at.device,
                      " was released meanwhile.");
  }
  for (const Checkpoint::SegmentLayout& layout : checkpoint.segments) {
    const auto found = at.segments.find(layout.piece_id);
    if (found != at.segments.end() && found->second->pool == pool) continue;
    refuse_checkpoint("Go back only to checkpoints of the pool as it is since it was last made.",
                      "A segment of the checkpoint is not the pool's (any more): the pool (",
                      pool->id.first, ", ", pool->id.second, ") on device ", at.device,
                      " was released since.");
  }
  std::size_t blocks_now = 0;
  for (const auto& [piece_id, segment] : at.segments) {
    if (!belongs(*segment, pool)) continue;
    for (const Block* block = segment->first; block != nullptr; block = block->next) {
      require_takeable(*block);
      ++blocks_now;
    }
  }
  std::size_t blocks_then = 0;
  for (const Checkpoint::SegmentLayout& layout : checkpoint.segments) {
    blocks_then += layout.blocks.size();
  }
  delta.freed.reserve(blocks_now);
  delta.allocated.reserve(blocks_then);
  at.reserve_nodes(blocks_then);  // those that are merged before would be enough, or nearly
  // From here on nothing refuses, and nothing fails.
  const CountersChange change(at.counters);
  for (const auto& [piece_id, segment] : at.segments) {
    if (belongs(*segment, pool)) at.free_all(*segment, delta.freed);
  }
  for (const Checkpoint::SegmentLayout& layout : checkpoint.segments) {
    at.lay_out(*at.segments.find(layout.piece_id)->second, layout, delta.allocated);
  }
  return delta;
}

}  // namespace limbo
