#include "allocator/page_table.h"

#include <utility>

namespace limbo {
namespace {

std::uintptr_t number(const void* address) noexcept {
  return reinterpret_cast<std::uintptr_t>(address);
}

constexpr std::uintptr_t kChunkMask = PageTable::kChunkBytes - 1;

std::size_t index_in_node(std::uintptr_t address) noexcept {
  return (address >> PageTable::kChunkBits) & ((std::size_t{1} << PageTable::kLevelBits) - 1);
}

}  // namespace

struct PageTable::Chunk {
  explicit Chunk(bool is_large)
      : large(is_large), slots(std::make_unique<std::atomic<Block*>[]>(slot_count())) {}

  std::atomic<int> device{-1};
  const bool large;
  std::unique_ptr<std::atomic<Block*>[]> slots;
  Chunk* next_hidden = nullptr;  // of the same segment, by address; null in the last

  [[nodiscard]] unsigned shift() const noexcept { return large ? kLargeShift : kSmallShift; }
  [[nodiscard]] std::size_t slot_count() const noexcept { return kChunkBytes >> shift(); }
};

PageTable::PageTable() = default;

PageTable::~PageTable() = default;

bool PageTable::can_hold(const void* base, std::size_t size_bytes) noexcept {
  const std::uintptr_t first = number(base);
  const std::uintptr_t limit = std::uintptr_t{1} << kAddressBits;
  return (first & kChunkMask) == 0 && (size_bytes & kChunkMask) == 0 && first < limit &&
         size_bytes <= limit - first;
}

PageTable::Chunk* PageTable::chunk_at(std::uintptr_t address) const noexcept {
  if ((address >> kAddressBits) != 0) return nullptr;
  const Node* node = root_[address >> (kChunkBits + kLevelBits)].load(std::memory_order_acquire);
  if (node == nullptr) return nullptr;
  return node->chunks[index_in_node(address)].load(std::memory_order_acquire);
}

Block* PageTable::holding(const void* address) const noexcept {
  const std::uintptr_t where = number(address);
  const Chunk* chunk = chunk_at(where);
  if (chunk == nullptr) return nullptr;
  // A segment's first block starts where the segment does, so the walk ends there at the latest.
  std::uintptr_t chunk_base = where & ~kChunkMask;
  std::size_t slot = (where & kChunkMask) >> chunk->shift();
  while (true) {
    Block* block = chunk->slots[slot].load(std::memory_order_acquire);
    if (block != nullptr && block->data() <= address) {
      return address < block->end() ? block : nullptr;
    }
    if (slot > 0) {
      --slot;
      continue;
    }
    chunk_base -= kChunkBytes;
    chunk = chunk_at(chunk_base);
    if (chunk == nullptr) return nullptr;
    slot = chunk->slot_count() - 1;
  }
}

int PageTable::device_of(const void* address) const noexcept {
  const Chunk* chunk = chunk_at(number(address));
  return chunk == nullptr ? -1 : chunk->device.load(std::memory_order_relaxed);
}

bool PageTable::overlaps(const void* base, std::size_t size_bytes) const noexcept {
  for (std::uintptr_t done = 0; done < size_bytes; done += kChunkBytes) {
    if (chunk_at(number(base) + done) != nullptr) return true;
  }
  return false;
}

PageTable::Node& PageTable::node_at(std::uintptr_t address) {
  std::atomic<Node*>& at = root_[address >> (kChunkBits + kLevelBits)];
  Node* node = at.load(std::memory_order_acquire);
  if (node == nullptr) {
    const std::lock_guard lock(mutex_);
    node = at.load(std::memory_order_acquire);  // two devices may share a node
    if (node == nullptr) {
      nodes_.push_back(std::make_unique<Node>());
      node = nodes_.back().get();
      at.store(node, std::memory_order_release);
    }
  }
  return *node;
}

PageTable::Chunk* PageTable::spare_chunk(bool large) {
  const std::lock_guard lock(mutex_);
  std::vector<Chunk*>& spare = spare_[large ? 1 : 0];
  if (!spare.empty()) {
    Chunk* chunk = spare.back();
    spare.pop_back();
    return chunk;
  }
  // So that remove_segment never allocates.
  if (spare.capacity() <= chunks_.size()) spare.reserve(2 * chunks_.size() + 8);
  chunks_.push_back(std::make_unique<Chunk>(large));
  return chunks_.back().get();
}

void PageTable::add_segment(const void* base, std::size_t size_bytes, bool large, int device) {
  const std::uintptr_t first = number(base);
  std::uintptr_t done = 0;
  try {
    for (; done < size_bytes; done += kChunkBytes) {
      static_cast<void>(node_at(first + done));
      Chunk* chunk = spare_chunk(large);
      chunk->device.store(device, std::memory_order_relaxed);
      enter(first + done, chunk);
    }
  } catch (...) {
    remove_segment(base, done);
    throw;
  }
}

// The node is there.
void PageTable::enter(std::uintptr_t address, Chunk* chunk) noexcept {
  Node& node = node_at(address);
  const std::size_t index = index_in_node(address);
  node.chunks[index].store(chunk, std::memory_order_release);
  node.slots[index].store(
      reinterpret_cast<std::uintptr_t>(chunk->slots.get()) | (chunk->large ? kLargeTag : 0),
      std::memory_order_release);
}

void PageTable::remove_segment(const void* base, std::size_t size_bytes) noexcept {
  give_back(hide_segment(base, size_bytes));
}

PageTable::Chunk* PageTable::hide_segment(const void* base, std::size_t size_bytes) noexcept {
  const std::uintptr_t first = number(base);
  Chunk* hidden = nullptr;
  for (std::uintptr_t left = size_bytes; left > 0; left -= kChunkBytes) {
    const std::uintptr_t address = first + left - kChunkBytes;
    Node& node = node_at(address);
    const std::size_t index = index_in_node(address);
    node.slots[index].store(0, std::memory_order_release);
    Chunk* chunk = node.chunks[index].exchange(nullptr, std::memory_order_acq_rel);
    for (std::size_t slot = 0; slot < chunk->slot_count(); ++slot) {
      if (chunk->slots[slot].load(std::memory_order_relaxed) != nullptr) {
        chunk->slots[slot].store(nullptr, std::memory_order_relaxed);
      }
    }
    chunk->next_hidden = hidden;
    hidden = chunk;
  }
  return hidden;
}

void PageTable::show_segment(const void* base, Chunk* hidden) noexcept {
  std::uintptr_t address = number(base);
  for (; hidden != nullptr; address += kChunkBytes) {
    enter(address, hidden);
    hidden = std::exchange(hidden->next_hidden, nullptr);
  }
}

void PageTable::give_back(Chunk* hidden) noexcept {
  const std::lock_guard lock(mutex_);
  while (hidden != nullptr) {
    Chunk* chunk = hidden;
    hidden = std::exchange(chunk->next_hidden, nullptr);
    spare_[chunk->large ? 1 : 0].push_back(chunk);
  }
}

void PageTable::set(const void* address, Block* block) noexcept {
  const std::uintptr_t where = number(address);
  Chunk* chunk = chunk_at(where);
  chunk->slots[(where & kChunkMask) >> chunk->shift()].store(block, std::memory_order_release);
}

}  // namespace limbo
