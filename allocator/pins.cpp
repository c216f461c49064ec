// Pins: a pinned block that is freed waits in limbo until its last unpin.
//
// The count is a part of the block's word, so that pinning, unpinning and freeing agree on an order
// without a lock of their own. (These pins protect the content: the block is not reused. A pin of
// the place, for memory that may not move, is another thing and would count beside it.)
#include <string>

#include "allocator/address_text.h"
#include "allocator/allocator_impl.h"
#include "allocator/error.h"

namespace limbo {

namespace {

// Its content is a graph's or a pool's to change, and its pieces may be anything.
[[noreturn]] void throw_private(const void* data, const Block& block) {
  const PoolId id = block.segment->pool->id;
  std::string advice =
      "Memory of CUDA graphs and of torch.cuda.MemPool cannot be lent: copy it with clone(), "
      "outside of the pool, and lend the copy.";
  if (block.segment->pool->use_on_oom) {
    advice +=
        " This pool also serves allocations from outside of it while memory is short "
        "(use_on_oom): where the block, or its copy, came from that, free other memory first, or "
        "make the pool without use_on_oom.";
  }
  throw Error(ErrorCode::kNotLendable,
              address_text(data) + " lies in a block of the private pool (" +
                  std::to_string(id.first) + ", " + std::to_string(id.second) + ").",
              advice);
}

}  // namespace

BlockView Allocator::Impl::view(Block* block) const noexcept {
  const Segment& segment = *block->segment;
  BlockView seen;
  seen.block = block;
  seen.data = block->data();
  seen.size_bytes = block->size_bytes;
  seen.requested_bytes = block->requested_bytes.load(std::memory_order_relaxed);
  seen.stream = segment.stream;
  seen.pool = segment.pool->id;
  seen.piece_id = segment.piece.id;
  seen.piece_base = segment.piece.base;
  seen.piece_size_bytes = segment.piece.size_bytes;
  seen.offset_bytes = static_cast<std::size_t>(block->data() - segment.piece.base);
  return seen;
}

// The block has just entered limbo, with a pin for the list.
void Allocator::Impl::let_go(DeviceHeap& at, Block* block) noexcept {
  ++at.counters.limbo_blocks;
  at.counters.limbo_bytes += static_cast<std::int64_t>(block->size_bytes);
  Block* head = let_go_head.load(std::memory_order_relaxed);
  do {
    block->link = head;
  } while (!let_go_head.compare_exchange_weak(head, block, std::memory_order_release,
                                              std::memory_order_relaxed));
}

// The block was seen in limbo with one pin, the caller's.
void Allocator::Impl::unpin_last(Block* block) {
  DeviceHeap& at = heap_of(*block);  // constant while the block is pinned
  PlannedWaits planned;
  {
    const std::lock_guard lock(at.mutex);
    std::uint64_t now = block->word.load(std::memory_order_acquire);
    std::uint64_t unpinned = 0;
    bool last = false;
    do {
      // pin_again may have come between: then this is not the last one any more.
      last = block_word::pins(now) == 1;
      unpinned =
          last ? block_word::with_state(now, BlockState::kWaiting) : now - block_word::kPinUnit;
    } while (!block->word.compare_exchange_weak(now, unpinned, std::memory_order_acq_rel));
    if (!last) return;
    const CountersChange change(at.counters);
    --at.counters.limbo_blocks;
    at.counters.limbo_bytes -= static_cast<std::int64_t>(block->size_bytes);
    planned = plan_waits(at, block);
    if (block->waits == 0) at.end_active(block);
  }
  begin_waits(at, planned);
  at.trace.tell(Trace::Wait::kNo);  // the unpins of limbo's own threads are waited for
}

BlockView Allocator::pin(const void* data) {
  auto [at, lock] = impl_->lock_heap_at(data);
  Block* block = at == nullptr ? nullptr : impl_->page_table.holding(data);
  if (block != nullptr && !block->segment->pool->is_default()) throw_private(data, *block);
  if (block != nullptr) {
    std::uint64_t now = block->word.load(std::memory_order_acquire);
    while (block_word::state(now) == BlockState::kAllocated) {
      if (block_word::pins(now) >= block_word::kMaxPins - 1) {
        throw Error(ErrorCode::kNotLendable, "A block is pinned 16,777,214 times.",
                    "That is the most; release some of its exports first.");
      }
      const std::uint64_t pinned = (now + block_word::kPinUnit) | block_word::kEverPinned;
      if (block->word.compare_exchange_weak(now, pinned, std::memory_order_acq_rel)) {
        return impl_->view(block);
      }
    }
  }
  const std::string where = address_text(data);
  if (block == nullptr) {
    throw Error(ErrorCode::kNotLendable, where + " was not allocated here.",
                "Only memory that Limbo allocated can be lent; copy it into such memory first.");
  }
  throw Error(ErrorCode::kNotLendable, where + " lies in a block that was freed.",
              "Lend memory while it is allocated.");
}

void Allocator::pin_again(Block* block) {
  std::uint64_t now = block->word.load(std::memory_order_relaxed);
  do {
    if (block_word::pins(now) == 0) {
      throw Error(ErrorCode::kInternal, "pin_again on a block without a pin.");
    }
    if (block_word::pins(now) >= block_word::kMaxPins - 1) {
      throw Error(ErrorCode::kNotLendable, "A block is pinned 16,777,214 times.",
                  "That is the most; release some of its exports first.");
    }
  } while (!block->word.compare_exchange_weak(now, now + block_word::kPinUnit,
                                              std::memory_order_relaxed));
}

void Allocator::unpin(Block* block) {
  std::uint64_t now = block->word.load(std::memory_order_acquire);
  while (true) {
    if (block_word::pins(now) == 0) {
      throw Error(ErrorCode::kInternal, "unpin of a block without a pin.");
    }
    if (block_word::state(now) == BlockState::kLimbo && block_word::pins(now) == 1) {
      impl_->unpin_last(block);
      return;
    }
    if (block->word.compare_exchange_weak(now, now - block_word::kPinUnit,
                                          std::memory_order_acq_rel)) {
      return;
    }
  }
}

Block* Allocator::take_let_go() noexcept {
  return impl_->let_go_head.exchange(nullptr, std::memory_order_acquire);
}

Block* Allocator::next_let_go(Block* block) noexcept {
  return block->link;
}

void*& Allocator::lender_note(Block* block) noexcept {
  return block->note;
}

}  // namespace limbo
