// Sizes: how requests are rounded and how large a segment is. All in bytes.
//
// The numbers are those of PyTorch's native allocator, so that its users find what they know.
#pragma once

#include <cstddef>
#include <string>

namespace limbo::sizes {

inline constexpr std::size_t kMiB = std::size_t{1} << 20;
inline constexpr std::size_t kBlockUnit = 512;           // every block is a multiple of it
inline constexpr std::size_t kSmallLimit = kMiB;         // up to here a request is "small"
inline constexpr std::size_t kSmallSegment = 2 * kMiB;   // what small blocks are cut from
inline constexpr std::size_t kMediumLimit = 10 * kMiB;   // below it large blocks share segments
inline constexpr std::size_t kLargeSegment = 20 * kMiB;  // of this size (a policy may change it)
inline constexpr std::size_t kSegmentUnit = 2 * kMiB;    // every segment is a multiple of it
inline constexpr std::size_t kExabyte = std::size_t{1} << 60;

[[nodiscard]] constexpr std::size_t round_up(std::size_t size, std::size_t unit) noexcept {
  return (size + unit - 1) / unit * unit;
}

// `size` is positive and below kExabyte.
[[nodiscard]] constexpr std::size_t block_size(std::size_t size) noexcept {
  return round_up(size, kBlockUnit);
}

[[nodiscard]] constexpr bool is_large(std::size_t block_size) noexcept {
  return block_size > kSmallLimit;
}

[[nodiscard]] constexpr std::size_t segment_size(
    std::size_t block_size, std::size_t large_segment = kLargeSegment) noexcept {
  if (!is_large(block_size)) return kSmallSegment;
  if (block_size < kMediumLimit) return large_segment;
  return round_up(block_size, kSegmentUnit);
}

// The least segment that holds the block, for when there is no room for a shared one.
[[nodiscard]] constexpr std::size_t least_segment_size(std::size_t block_size) noexcept {
  return round_up(block_size, kSegmentUnit);
}

// Whether what remains of a free block is worth a block of its own. In large segments every block
// stays larger than 1 MiB: the page table relies on it.
[[nodiscard]] constexpr bool leaves_block(bool large, std::size_t remaining) noexcept {
  return large ? remaining > kSmallLimit : remaining >= kBlockUnit;
}

// For people: two decimals and a binary unit ("20.00 MiB"), as torch's users know it.
[[nodiscard]] std::string size_text(std::size_t size_bytes);

}  // namespace limbo::sizes
