// The free blocks of small segments (2 MiB) of one pool: best fit by (stream, size, segment,
// address), as FreeList does it for large ones.
//
// There is a bin for each size that such a block can have, and a bitmap of the bins that are not
// empty, so a search looks at the block that it finds and at hardly any other. Most bins hold a few
// blocks; the blocks of one are a treap, a binary tree by (segment, address) that the blocks'
// pseudo-random priorities keep shallow. Its links lie in the blocks: nothing is allocated but the
// bins of a stream, once.
// Guarded by the heap lock.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "allocator/block.h"
#include "allocator/sizes.h"

namespace limbo {

class SmallFreeList {
 public:
  // Before the first block of the stream is inserted. Throws std::bad_alloc.
  void prepare(StreamHandle stream);

  void insert(Block* block) noexcept;
  void erase(Block* block) noexcept;

  // The smallest block of the stream that holds size_bytes; among equals one of the oldest segment,
  // and there the lowest address. Null if there is none.
  [[nodiscard]] Block* find_best(StreamHandle stream, std::size_t size_bytes) const noexcept;

  [[nodiscard]] bool contains(const Block* block) const noexcept;
  [[nodiscard]] std::size_t size() const noexcept { return size_; }
  [[nodiscard]] std::size_t largest_bytes() const noexcept;  // 0: it is empty

 private:
  static constexpr std::size_t kBins = sizes::kSmallSegment / sizes::kBlockUnit;
  static constexpr std::size_t kWords = kBins / 64;
  static_assert(kWords == 64, "one word says which words are not 0");
  struct Bins {
    StreamHandle stream = nullptr;
    std::uint64_t used_words = 0;
    std::array<std::uint64_t, kWords> used{};
    std::array<Block*, kBins> roots{};
  };

  [[nodiscard]] Bins* bins_of(StreamHandle stream) const noexcept;

  std::vector<std::unique_ptr<Bins>> bins_;  // by stream; few
  std::size_t size_ = 0;
};

}  // namespace limbo
