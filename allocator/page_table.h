// From an address to its block, without a lock and without hashing.
//
// 47 address bits: 13 choose a node, 13 choose a chunk of 2 MiB in it, and the rest a slot of the
// chunk. A slot holds the block that *starts* in it, or null. In small segments a slot is 512 bytes
// (4,096 slots); in large ones it is 1 MiB (2 slots), which is enough because every block there is
// larger than 1 MiB.
//
// Reading is lock-free and safe with any address. Nodes and chunks are kept for reuse and never
// given back while the table lives. Writing happens under the heap lock of the device that the
// memory belongs to; two devices never share a chunk.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "allocator/block.h"

namespace limbo {

class PageTable {
 public:
  struct Chunk;  // the slots of 2 MiB of addresses; opaque
  static constexpr unsigned kChunkBits = 21;
  static constexpr unsigned kLevelBits = 13;
  static constexpr unsigned kAddressBits = kChunkBits + 2 * kLevelBits;
  static constexpr std::size_t kChunkBytes = std::size_t{1} << kChunkBits;

  PageTable();
  ~PageTable();
  PageTable(const PageTable&) = delete;
  PageTable& operator=(const PageTable&) = delete;

  // Whether a segment at `base` of `size_bytes` can be entered (alignment, address bits).
  [[nodiscard]] static bool can_hold(const void* base, std::size_t size_bytes) noexcept;

  // The block that starts exactly at `address`; null if there is none. A part of every free.
  [[nodiscard]] Block* starting_at(const void* address) const noexcept {
    const auto where = reinterpret_cast<std::uintptr_t>(address);
    if ((where >> kAddressBits) != 0) [[unlikely]] {
      return nullptr;
    }
    const Node* node = root_[where >> (kChunkBits + kLevelBits)].load(std::memory_order_acquire);
    if (node == nullptr) [[unlikely]] {
      return nullptr;
    }
    const std::uintptr_t slots =
        node->slots[(where >> kChunkBits) & (kFanOut - 1)].load(std::memory_order_acquire);
    if (slots == 0) [[unlikely]] {
      return nullptr;
    }
    const unsigned shift = (slots & kLargeTag) != 0 ? kLargeShift : kSmallShift;
    const auto* first = reinterpret_cast<const std::atomic<Block*>*>(slots & ~kLargeTag);
    Block* block = first[(where & (kChunkBytes - 1)) >> shift].load(std::memory_order_acquire);
    if (block == nullptr) [[unlikely]] {
      return nullptr;
    }
    prefetch_to_write(block);
    return block->data() == address ? block : nullptr;
  }

  // The block whose range holds `address`; null if no segment does. Caller holds the heap lock of
  // device_of(address). Looks backwards slot by slot.
  [[nodiscard]] Block* holding(const void* address) const noexcept;

  // The device of the segment at `address`; -1 if there is none.
  [[nodiscard]] int device_of(const void* address) const noexcept;

  // Whether any of it lies in a segment. `base` is as can_hold wants it.
  [[nodiscard]] bool overlaps(const void* base, std::size_t size_bytes) const noexcept;

  // A segment comes and goes. Caller holds the device's heap lock. add throws std::bad_alloc and
  // has then changed nothing that a lookup sees.
  void add_segment(const void* base, std::size_t size_bytes, bool large, int device);
  void remove_segment(const void* base, std::size_t size_bytes) noexcept;

  // The same in two steps, of which the first can be undone: hide returns the segment's chunks, with
  // no block in them, which either are shown again or given back.
  [[nodiscard]] Chunk* hide_segment(const void* base, std::size_t size_bytes) noexcept;
  void show_segment(const void* base, Chunk* hidden) noexcept;
  void give_back(Chunk* hidden) noexcept;

  // Sets the slot of `address` in a segment that was added. `block` may be null.
  void set(const void* address, Block* block) noexcept;

 private:
  static constexpr std::size_t kFanOut = std::size_t{1} << kLevelBits;
  static constexpr unsigned kSmallShift = 9;   // 512 bytes
  static constexpr unsigned kLargeShift = 20;  // 1 MiB

  // An entry of `slots` is the chunk's slots, with kLargeTag where they are those of a large one: a
  // free needs nothing else of the chunk. It is set after the entry of `chunks`, and reset before.
  static constexpr std::uintptr_t kLargeTag = 1;
  struct Node {
    std::array<std::atomic<std::uintptr_t>, kFanOut> slots{};
    std::array<std::atomic<Chunk*>, kFanOut> chunks{};
  };

  [[nodiscard]] Chunk* chunk_at(std::uintptr_t address) const noexcept;
  [[nodiscard]] Node& node_at(std::uintptr_t address);
  [[nodiscard]] Chunk* spare_chunk(bool large);
  void enter(std::uintptr_t address, Chunk* chunk) noexcept;

  std::array<std::atomic<Node*>, kFanOut> root_{};
  std::mutex mutex_;  // guards the containers below; a leaf
  std::vector<std::unique_ptr<Node>> nodes_;
  std::vector<std::unique_ptr<Chunk>> chunks_;
  std::array<std::vector<Chunk*>, 2> spare_;  // [large]
};

}  // namespace limbo
