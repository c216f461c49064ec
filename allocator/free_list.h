// The free blocks of large segments of one pool (small_free_list.h: of small ones): best fit by
// (stream, size, segment, address). Older segments come first, so that younger ones become free as a whole; where the driver
// put a segment changes nothing.
// Guarded by the heap lock.
//
// Putting a block in and taking it out cannot fail: the memory for it, a *place*, is made apart, when
// failing changes nothing, and goes from list to list.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <set>
#include <utility>

#include "allocator/block.h"
#include "allocator/segment.h"

namespace limbo {

class FreeList {
 public:
  // A block and what it is ordered by, so that a search looks at no blocks. Both stay as they are
  // while the block is in the list.
  struct Entry {
    StreamHandle stream;
    std::size_t size_bytes;
    std::uint64_t piece_id;
    const std::byte* address;
    Block* block;

    operator Block*() const noexcept { return block; }  // for loops over the list
  };

  struct Before {
    bool operator()(const Entry& a, const Entry& b) const noexcept {
      if (a.stream != b.stream) return std::less<>{}(a.stream, b.stream);
      if (a.size_bytes != b.size_bytes) return a.size_bytes < b.size_bytes;
      if (a.piece_id != b.piece_id) return a.piece_id < b.piece_id;
      return std::less<>{}(a.address, b.address);
    }
  };
  using Entries = std::set<Entry, Before>;

  // Empty, or the memory that one block takes in a list.
  using Place = Entries::node_type;
  [[nodiscard]] static Place make_place() {  // throws std::bad_alloc
    Entries made{Entry{}};
    return made.extract(made.begin());
  }

  void insert(Block* block, Place place) noexcept {
    place.value() = entry_of(block);
    entries_.insert(std::move(place));
  }
  // Returns the place that the block had; empty if it was not here.
  [[nodiscard]] Place erase(Block* block) noexcept { return entries_.extract(entry_of(block)); }

  // The smallest block of the stream that holds size_bytes; among equals one of the oldest segment,
  // and there the lowest address. Null if there is none.
  [[nodiscard]] Block* find_best(StreamHandle stream, std::size_t size_bytes) const {
    const auto found = entries_.lower_bound(Entry{stream, size_bytes, 0, nullptr, nullptr});
    return found == entries_.end() || found->stream != stream ? nullptr : found->block;
  }

  [[nodiscard]] bool contains(const Block* block) const {
    return entries_.contains(entry_of(const_cast<Block*>(block)));
  }
  [[nodiscard]] std::size_t size() const noexcept { return entries_.size(); }
  [[nodiscard]] auto begin() const noexcept { return entries_.begin(); }
  [[nodiscard]] auto end() const noexcept { return entries_.end(); }

 private:
  static Entry entry_of(Block* block) noexcept {
    return {block->segment->stream.handle, block->size_bytes, block->segment->piece.id,
            block->data(), block};
  }
  Entries entries_;
};

}  // namespace limbo
