// A block and the word that says who owns it.
//
// Block nodes are never given back to the C++ heap while their allocator lives: a wrong free may
// look at any block's word at any time, and finds a word there.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>

#include "allocator/device/device.h"

namespace limbo {

class CapturePoint;
struct Block;
struct Segment;

enum class BlockState : std::uint8_t {
  kUnused = 0,  // a node without memory
  kFree,        // in a central free list
  kCached,      // free, and in a thread's cache, in the depot, or on its way from there
  kAllocated,   // handed out
  kWaiting,     // freed, waits for events of streams that record_stream named
  kLimbo,       // freed, and pinned
  kInTransit,   // all of a piece that is on its way from the driver, or maybe back to it
};

// The word: generation (32 bits) | pins (24) | flags (4) | state (4).
//
// | from -> to                        | who                              | how                     |
// |-----------------------------------|----------------------------------|-------------------------|
// | Cached -> Allocated, generation+1 | the cache's owner, in its gate   | release store           |
// | Free -> Allocated, generation+1   | a miss, heap lock; with kPrivate | release store           |
// |                                   | where the pool is a private one, |                         |
// |                                   | kNoted where the heap has notes  |                         |
// | Allocated, no flags -> Cached     | free, in the gate                | compare-and-swap        |
// | Allocated -> Free, Waiting, Limbo | free, the slow way, heap lock    | compare-and-swap        |
// | Allocated: pins, flags            | pin, unpin, record_stream        | compare-and-swap        |
// | Limbo: pins down to 1, and up     | unpin, pin_again                 | compare-and-swap        |
// | Limbo, 1 pin -> Waiting, Free     | the last unpin, heap lock        | compare-and-swap        |
// | Waiting -> Free                   | the last event, heap lock        | store                   |
// | Cached -> Free                    | sweep, spill, thread exit; lock  | store                   |
// | Free <-> InTransit                | a new piece, or return of a      | store                   |
// |                                   | piece; heap lock                 |                         |
// | Free, InTransit -> Unused         | merge, piece returned; lock      | store                   |
//
// A free is a compare-and-swap because two threads may free the same block at once, and exactly one
// of them may be believed. Whoever has won it owns the block's other fields: acquire there, release
// in the stores. The generation makes a free that was overtaken by another free and a new
// allocation fail instead of taking the new owner's block.
namespace block_word {

inline constexpr std::uint64_t kStateMask = 0xf;
inline constexpr std::uint64_t kRecorded = 1U << 4;    // record_stream named other streams
inline constexpr std::uint64_t kEverPinned = 1U << 5;  // its note may be set: free clears it
inline constexpr std::uint64_t kPrivate = 1U << 6;     // of a private pool: never cached
inline constexpr std::uint64_t kNoted = 1U << 7;       // `context` or `oversize` is set
inline constexpr std::uint64_t kPinUnit = 1U << 8;
inline constexpr std::uint64_t kMaxPins = (1U << 24) - 1;
inline constexpr unsigned kGenerationShift = 32;

[[nodiscard]] constexpr BlockState state(std::uint64_t word) noexcept {
  return static_cast<BlockState>(word & kStateMask);
}
[[nodiscard]] constexpr std::uint64_t pins(std::uint64_t word) noexcept {
  return (word / kPinUnit) & kMaxPins;
}
[[nodiscard]] constexpr std::uint64_t generation(std::uint64_t word) noexcept {
  return word >> kGenerationShift;
}

// The same generation in another state, without pins and flags.
[[nodiscard]] constexpr std::uint64_t with_state(std::uint64_t word, BlockState state) noexcept {
  return (generation(word) << kGenerationShift) | static_cast<std::uint64_t>(state);
}

// The word of the next allocation.
[[nodiscard]] constexpr std::uint64_t next_allocated(std::uint64_t word) noexcept {
  return ((generation(word) + 1) << kGenerationShift) |
         static_cast<std::uint64_t>(BlockState::kAllocated);
}

// Allocated, not pinned, no flag: what the fast way may free.
[[nodiscard]] constexpr bool is_plain_allocated(std::uint64_t word) noexcept {
  return (word & 0xffffffffU) == static_cast<std::uint64_t>(BlockState::kAllocated);
}

}  // namespace block_word

// A stream whose work a block waits for before it is used again. It is made when the stream is named,
// and from then on only moved from list to list, so nothing can fail when the block is freed:
// Block::users, DeviceHeap::unrecorded, DeviceHeap::waits. Guarded by the heap lock.
struct Wait {
  StreamRef stream;
  Block* block = nullptr;
  EventHandle event = nullptr;  // behind the stream's work; null until it is recorded
  std::uint64_t number = 0;     // of the heap's waits, in the order of the frees
  // Not 0: a thread, without the lock, records or asks the event, and nobody else touches it. It is
  // then the how-many-th time that any of the heap's was taken so.
  std::uint64_t in_hand = 0;
  // What the stream had captured at the free; null where the block is not reused in the capture.
  std::shared_ptr<const CapturePoint> point;
};
using WaitList = std::list<Wait>;

// What hits read and write is on its first cache line. No other block shares it, nor the line beside
// it, which processors fetch along: threads that work on neighbours would disturb each other.
struct alignas(128) Block {
  std::atomic<std::uint64_t> word{0};
  std::atomic<std::byte*> base{nullptr};  // read by lookups before they own the block
  std::atomic<std::size_t> requested_bytes{0};

  // Written under the heap lock; constant while the block is not in a central free list.
  std::size_t size_bytes = 0;
  Segment* segment = nullptr;
  bool split = false;  // a part of its segment (valid outside the free lists)

  // The next block of the list that holds it: a cache's chain, the let-go list, unused nodes.
  Block* link = nullptr;

  // Guarded by the heap lock.
  Block* previous = nullptr;  // neighbours in the segment, by address
  Block* next = nullptr;
  std::uint64_t free_since = 0;     // DeviceHeap::searches when it became free
  unsigned waits = 0;               // events that it still waits for
  bool oversize = false;            // counted as an oversize allocation
  std::uint16_t chain_count = 0;    // see next_chain
  std::unique_ptr<WaitList> users;  // streams named by record_stream
  std::shared_ptr<void> context;    // of its allocation, while it is active (trace.h)

  // Of the first block of a chain in the depot or a ChainList: the first block of the next chain,
  // and, in the depot, how many blocks its own has.
  Block* next_chain = nullptr;

  // The lender's word (Allocator::lender_note).
  void* note = nullptr;

  [[nodiscard]] std::byte* data() const noexcept { return base.load(std::memory_order_relaxed); }
  [[nodiscard]] std::byte* end() const noexcept { return data() + size_bytes; }
  [[nodiscard]] BlockState state() const noexcept {
    return block_word::state(word.load(std::memory_order_acquire));
  }
  void set_state(BlockState state) noexcept {
    const std::uint64_t now = word.load(std::memory_order_relaxed);
    word.store(block_word::with_state(now, state), std::memory_order_release);
  }
};

// Fetches the line of a block that somebody else may have written last, for writing at once: read
// first, it would have to be asked for twice. (The compiler's own prefetch does so only where all
// processors that it builds for have the instruction; one that lacks it does nothing.)
inline void prefetch_to_write(const Block* block) noexcept {
  asm volatile("prefetchw %0" : : "m"(*reinterpret_cast<const char*>(block)));
}

// Blocks linked by Block::link.
struct Chain {
  Block* head = nullptr;
  std::uint32_t count = 0;

  [[nodiscard]] bool empty() const noexcept { return head == nullptr; }
  void push(Block* block) noexcept {
    block->link = head;
    head = block;
    ++count;
  }
  [[nodiscard]] Block* pop() noexcept {
    Block* block = head;
    head = block->link;
    --count;
    return block;
  }
};

// Chains that have been taken from where they were: taking one looks at its first block only.
class ChainList {
 public:
  ChainList() = default;
  explicit ChainList(const Chain& chain) noexcept { push(chain); }

  [[nodiscard]] bool empty() const noexcept { return head_ == nullptr; }
  [[nodiscard]] Block* first() const noexcept { return head_; }
  void push(const Chain& chain) noexcept {
    if (chain.empty()) return;
    chain.head->next_chain = head_;
    head_ = chain.head;
  }
  // The next block of all.
  [[nodiscard]] Block* pop() noexcept {
    Block* block = head_;
    if (block->link != nullptr) block->link->next_chain = block->next_chain;
    head_ = block->link != nullptr ? block->link : block->next_chain;
    return block;
  }

 private:
  Block* head_ = nullptr;
};
static_assert(sizeof(Block) == 128, "two cache lines");

}  // namespace limbo
