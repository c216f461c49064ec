#include "allocator/small_free_list.h"

#include <algorithm>
#include <bit>
#include <functional>
#include <utility>

#include "allocator/segment.h"

namespace limbo {
namespace {

// ---- a bin's treap: the children of a free block lie in fields that lists of others use ----------

Block*& left_of(Block* block) noexcept {
  return block->link;
}
Block*& right_of(Block* block) noexcept {
  return block->next_chain;
}

// Any order that has nothing to do with that of the addresses.
std::uint64_t priority_of(const Block* block) noexcept {
  return std::bit_cast<std::uintptr_t>(block) * 0x9e3779b97f4a7c15U;
}

bool comes_before(const Block* a, const Block* b) noexcept {
  if (a->segment != b->segment) return a->segment->piece.id < b->segment->piece.id;
  return std::less<>{}(a->data(), b->data());
}

void insert_into(Block** at, Block* block) noexcept {
  const std::uint64_t priority = priority_of(block);
  while (*at != nullptr && priority_of(*at) > priority) {
    at = comes_before(block, *at) ? &left_of(*at) : &right_of(*at);
  }
  // What stood here is divided into what comes before the block and what comes behind it.
  Block* rest = std::exchange(*at, block);
  Block** before = &left_of(block);
  Block** behind = &right_of(block);
  while (rest != nullptr) {
    if (comes_before(rest, block)) {
      *before = rest;
      before = &right_of(rest);
      rest = *before;
    } else {
      *behind = rest;
      behind = &left_of(rest);
      rest = *behind;
    }
  }
  *before = nullptr;
  *behind = nullptr;
}

void erase_from(Block** at, Block* block) noexcept {
  while (*at != block) at = comes_before(block, *at) ? &left_of(*at) : &right_of(*at);
  // Its children become one tree.
  Block* before = std::exchange(left_of(block), nullptr);
  Block* behind = std::exchange(right_of(block), nullptr);
  while (before != nullptr && behind != nullptr) {
    if (priority_of(before) > priority_of(behind)) {
      *at = before;
      at = &right_of(before);
      before = *at;
    } else {
      *at = behind;
      at = &left_of(behind);
      behind = *at;
    }
  }
  *at = before != nullptr ? before : behind;
}

std::size_t bin_of(std::size_t size_bytes) noexcept {
  return size_bytes / sizes::kBlockUnit - 1;
}

}  // namespace

SmallFreeList::Bins* SmallFreeList::bins_of(StreamHandle stream) const noexcept {
  for (const auto& bins : bins_) {
    if (bins->stream == stream) return bins.get();
  }
  return nullptr;
}

void SmallFreeList::prepare(StreamHandle stream) {
  if (bins_of(stream) != nullptr) return;
  auto made = std::make_unique<Bins>();
  made->stream = stream;
  bins_.push_back(std::move(made));
}

void SmallFreeList::insert(Block* block) noexcept {
  Bins& bins = *bins_of(block->segment->stream.handle);
  const std::size_t bin = bin_of(block->size_bytes);
  insert_into(&bins.roots[bin], block);
  bins.used[bin / 64] |= std::uint64_t{1} << (bin % 64);
  bins.used_words |= std::uint64_t{1} << (bin / 64);
  ++size_;
}

void SmallFreeList::erase(Block* block) noexcept {
  Bins& bins = *bins_of(block->segment->stream.handle);
  const std::size_t bin = bin_of(block->size_bytes);
  erase_from(&bins.roots[bin], block);
  --size_;
  if (bins.roots[bin] != nullptr) return;
  bins.used[bin / 64] &= ~(std::uint64_t{1} << (bin % 64));
  if (bins.used[bin / 64] == 0) bins.used_words &= ~(std::uint64_t{1} << (bin / 64));
}

Block* SmallFreeList::find_best(StreamHandle stream, std::size_t size_bytes) const noexcept {
  const Bins* bins = bins_of(stream);
  if (bins == nullptr) return nullptr;
  const std::size_t least = bin_of(size_bytes);
  std::size_t word = least / 64;
  std::uint64_t bits = bins->used[word] >> (least % 64) << (least % 64);
  if (bits == 0) {
    if (word + 1 == kWords) return nullptr;
    const std::uint64_t words = bins->used_words >> (word + 1) << (word + 1);
    if (words == 0) return nullptr;
    word = static_cast<std::size_t>(std::countr_zero(words));
    bits = bins->used[word];
  }
  Block* block = bins->roots[word * 64 + static_cast<std::size_t>(std::countr_zero(bits))];
  while (left_of(block) != nullptr) block = left_of(block);
  return block;
}

bool SmallFreeList::contains(const Block* block) const noexcept {
  const Bins* bins = bins_of(block->segment->stream.handle);
  if (bins == nullptr) return false;
  Block* at = bins->roots[bin_of(block->size_bytes)];
  while (at != nullptr && at != block) {
    at = comes_before(block, at) ? left_of(at) : right_of(at);
  }
  return at != nullptr;
}

std::size_t SmallFreeList::largest_bytes() const noexcept {
  std::size_t largest = 0;
  for (const auto& bins : bins_) {
    if (bins->used_words == 0) continue;
    const auto word = static_cast<std::size_t>(63 - std::countl_zero(bins->used_words));
    const auto bit = static_cast<std::size_t>(63 - std::countl_zero(bins->used[word]));
    largest = std::max(largest, (word * 64 + bit + 1) * sizes::kBlockUnit);
  }
  return largest;
}

}  // namespace limbo
