// Segments and pieces.
//
// A piece is the memory behind a segment as the driver gave it: the unit that is lent, mapped and
// returned. With ProviderCudaMalloc a segment is one piece. Whoever wants to return memory asks
// whether a *piece* has blocks that are out, never whether a segment is free as a whole.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "allocator/block.h"
#include "allocator/page_table.h"
#include "allocator/provider.h"

namespace limbo {

struct Pool;  // pools.h

struct Piece {
  std::uint64_t id = 0;  // never reused in this process
  std::byte* base = nullptr;
  std::size_t size_bytes = 0;

  // Guarded by the heap lock.
  std::size_t blocks_out = 0;     // its blocks that are in no central free list
  bool kept_for_readers = false;  // the lender said that another process maps it
};

// Where a segment is, as trackers (trace.h) have heard, or hear at the moment. Only what is here has
// blocks in lists or out.
enum class Passage : std::uint8_t {
  kComing,  // the driver has given it: snapshots and statistics have it already
  kHere,
  kGoing,  // the driver gets it back: snapshots and statistics no longer have it
};

struct Segment {
  Provider* provider = nullptr;
  std::shared_ptr<Pool> pool;  // never null, constant
  StreamRef stream;            // home of all its blocks
  bool large = false;
  std::byte* base = nullptr;
  std::size_t size_bytes = 0;
  Block* first = nullptr;              // guarded by the heap lock
  Passage passage = Passage::kComing;  // guarded by the heap lock
  Piece piece;
  PageTable::Chunk* hidden = nullptr;  // what the page table had of it, while it is being returned
  std::shared_ptr<void> context;       // of the call that took it from the driver (trace.h)
  // How many segments the thread that made it had made before: the same in processes that do the
  // same, which is what NCCL registers segments by.
  std::int32_t registration_counter = 0;
  bool oversize = false;  // counted as an oversize segment

  // The piece behind `block`.
  [[nodiscard]] Piece& piece_of(const Block& /*block*/) noexcept { return piece; }
};

}  // namespace limbo
