// Frees that the fast way leaves: blocks with pins or recorded streams, threads without a cache,
// stopped gates; and wrong frees, each its own error.
#include <optional>

#include "allocator/address_text.h"
#include "allocator/allocator_impl.h"
#include "allocator/error.h"

namespace limbo {
namespace {

[[noreturn]] void throw_double_free(const void* data) {
  throw Error(ErrorCode::kDoubleFree, "The block at " + address_text(data) + " was freed already.",
              "Nothing was changed; free each block once.");
}

}  // namespace

// `word` is what the caller saw: a block that has another generation by now was freed by somebody
// else between, and this free is the second one.
void Allocator::Impl::free_slow(const void* data, Block* block, std::uint64_t word) {
  if (block_word::state(word) != BlockState::kAllocated) throw_double_free(data);
  std::optional<TraceCall> call;
  if (const int device_index = page_table.device_of(data); device_index >= 0) {
    call.emplace(heaps[static_cast<std::size_t>(device_index)]->trace, ContextLevel::kAll);
  }
  auto [at, lock] = lock_heap_at(data);
  PlannedWaits planned;
  {
    if (at == nullptr) throw_double_free(data);
    std::uint64_t now = block->word.load(std::memory_order_acquire);
    std::uint64_t freed = 0;
    do {
      if (block_word::state(now) != BlockState::kAllocated ||
          block_word::generation(now) != block_word::generation(word)) {
        throw_double_free(data);
      }
      // A pinned block goes to limbo, with a pin more for the let-go list that it is put on.
      freed = block_word::pins(now) == 0 ? block_word::with_state(now, BlockState::kWaiting)
                                         : block_word::with_state(now, BlockState::kLimbo) |
                                               (block_word::pins(now) + 1) * block_word::kPinUnit;
    } while (!block->word.compare_exchange_weak(now, freed, std::memory_order_acq_rel));
    const CountersChange change(at->counters);
    at->end_allocated(block);
    planned = plan_waits(*at, block);
    if (block_word::pins(now) != 0) {
      let_go(*at, block);
    } else if (block->waits == 0) {
      at->end_active(block);
    }
  }
  lock.unlock();
  begin_waits(*at, planned);
}

void Allocator::Impl::throw_wrong_free(const void* data) {
  const std::string where = address_text(data);
  {
    const auto [at, lock] = lock_heap_at(data);
    Block* holder = at == nullptr ? nullptr : page_table.holding(data);
    if (holder != nullptr) {
      const std::string start = address_text(holder->data());
      // A freed block may have been merged, so its start is inside a larger free block by now.
      if (holder->state() != BlockState::kAllocated || holder->data() == data) {
        throw_double_free(data);
      }
      throw Error(ErrorCode::kInteriorFree,
                  where + " lies inside the block at " + start + " of " +
                      std::to_string(holder->size_bytes) + " bytes and is not its start.",
                  "Free the pointer that the allocation returned.");
    }
  }
  throw Error(ErrorCode::kForeignFree, where + " was not allocated here.",
              "Free it where it was allocated. (If it was: it was freed before, and its memory has "
              "gone back to the driver since.)");
}

}  // namespace limbo
