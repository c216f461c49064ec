// Free blocks of one kind (small or large) of one device: best fit by (stream, size, segment,
// address). Older segments come first, so that younger ones become free as a whole; where the driver
// put a segment changes nothing.
// Guarded by the heap lock.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <set>
#include <tuple>

#include "allocator/block.h"
#include "allocator/segment.h"

namespace limbo {

class FreeList {
 public:
  void insert(Block* block) { blocks_.insert(block); }
  void erase(Block* block) { blocks_.erase(block); }

  // The smallest block of the stream that holds size_bytes; among equals one of the oldest segment,
  // and there the lowest address. Null if there is none.
  [[nodiscard]] Block* find_best(StreamHandle stream, std::size_t size_bytes) const {
    const auto found = blocks_.lower_bound(Key{stream, size_bytes, 0, nullptr});
    if (found == blocks_.end() || (*found)->segment->stream.handle != stream) return nullptr;
    return *found;
  }

  [[nodiscard]] bool contains(Block* block) const { return blocks_.contains(block); }
  [[nodiscard]] std::size_t size() const noexcept { return blocks_.size(); }
  [[nodiscard]] auto begin() const noexcept { return blocks_.begin(); }
  [[nodiscard]] auto end() const noexcept { return blocks_.end(); }

 private:
  struct Key {
    StreamHandle stream;
    std::size_t size_bytes;
    std::uint64_t piece_id;
    const std::byte* address;
  };
  struct Before {
    using is_transparent = void;
    static Key key(const Block* block) noexcept {
      return {block->segment->stream.handle, block->size_bytes, block->segment->piece.id,
              block->data()};
    }
    static const Key& key(const Key& value) noexcept { return value; }
    template <class Left, class Right>
    bool operator()(const Left& left, const Right& right) const noexcept {
      const Key& a = key(left);
      const Key& b = key(right);
      if (a.stream != b.stream) return std::less<>{}(a.stream, b.stream);
      if (a.size_bytes != b.size_bytes) return a.size_bytes < b.size_bytes;
      if (a.piece_id != b.piece_id) return a.piece_id < b.piece_id;
      return std::less<>{}(a.address, b.address);
    }
  };

  std::set<Block*, Before> blocks_;
};

}  // namespace limbo
