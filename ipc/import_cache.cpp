#include "ipc/import_cache.h"

#include <limits>

#include "ipc/fail_points.h"
#include "ipc/protocol/mistakes.h"

namespace limbo {

using protocol::makes;
using protocol::Mistake;

std::atomic<std::uint64_t> ImportCache::uses_{0};

ImportCache::ImportCache(Device& device, RowView row, LedgerView ledger)
    : device_(device), row_(row), ledger_(ledger) {}

Mapping* ImportCache::hold(const PieceName& piece, int device) {
  const std::lock_guard lock(mutex_);
  auto [entry, is_new] = table_.try_emplace(Key{piece, device});
  if (is_new) {
    try {
      entry->second = std::make_unique<Mapping>(piece, device);
    } catch (...) {
      table_.erase(entry);
      throw;
    }
    store_mark(piece);  // which may have said OPEN, of another device's
  }
  Mapping& mapping = *entry->second;
  ++mapping.holds_;
  mapping.last_use_ = uses_.fetch_add(1, std::memory_order_relaxed);
  return &mapping;
}

bool ImportCache::open(Mapping& mapping, const PieceFacts& piece) {
  if (mapping.base() == nullptr) begin(mapping, piece);
  LIMBO_FAIL_POINT("receive.after_mark_mapped");
  const std::lock_guard opening(mapping.opening_);
  const bool opens = mapping.base() == nullptr;
  if (opens) {
    void* base = device_.open_memory(mapping.device_, piece.handle);
    const std::lock_guard lock(mutex_);
    mapping.base_.store(base, std::memory_order_release);
    store_mark(mapping.piece_);
    ++counts_.opens;
    ++counts_.mapped;
  }
  LIMBO_FAIL_POINT("receive.after_open");
  return opens;
}

// The mark is behind HELD and its dirty words and before the open; the release of the claim, and so
// everything that the producer concludes from it, comes after it.
void ImportCache::begin(Mapping& mapping, const PieceFacts& piece) {
  const std::lock_guard lock(mutex_);
  if (mapping.begun_) return;
  ++mappings_of_[mapping.piece_];
  mapping.begun_ = true;
  mapping.size_bytes_ = piece.size_bytes;
  store_mark(mapping.piece_);
}

bool ImportCache::let_go(Mapping* mapping) noexcept {
  const std::lock_guard lock(mutex_);
  if (--mapping->holds_ > 0) return false;
  if (mapping->base() != nullptr) return true;
  const auto taken = table_.extract(key_of(*mapping));  // it was never opened
  if (mapping->begun_) {
    end(*mapping);
  } else {
    store_mark(mapping->piece_);
  }
  return false;
}

std::vector<ImportCache::Idle> ImportCache::idle() {
  std::vector<Idle> idle;
  const std::lock_guard lock(mutex_);
  for (const auto& [key, mapping] : table_) {
    if (mapping->holds_ > 0) continue;
    const PieceName& piece = mapping->piece_;
    const std::uint64_t word = ledger_.piece(piece.index).word.load(std::memory_order_acquire);
    const bool wanted = piece_generation(word) != piece.generation ||
                        (word & kPieceUnmapWanted) != 0 || (word & kPieceInUse) == 0;
    idle.push_back({mapping.get(), mapping->size_bytes_, mapping->last_use_, wanted});
  }
  return idle;
}

void ImportCache::close(Mapping* mapping) {
  {
    const std::lock_guard lock(mutex_);
    if (mapping->holds_ > 0) return;
    auto& closing = closing_[mapping];
    auto taken = table_.extract(key_of(*mapping));
    closing = std::move(taken.mapped());
    store_mark(mapping->piece_);
  }
  // Nobody else finds it any more. A close that fails leaves the mapping in place, so the mark must
  // stay as well: the entry is kept among the closing ones for good.
  LIMBO_FAIL_POINT("unmap.before_close");
  device_.close_memory(mapping->device_, mapping->base());
  LIMBO_FAIL_POINT("unmap.after_close");
  {
    const std::lock_guard lock(mutex_);
    ++counts_.closes;
    --counts_.mapped;
    end(*mapping);
    closing_.erase(mapping);
  }
  LIMBO_FAIL_POINT("unmap.after_clear");
}

ImportCounts ImportCache::counts() {
  const std::lock_guard lock(mutex_);
  return counts_;
}

// It is out of the table, and not open.
void ImportCache::end(const Mapping& mapping) {
  const auto count = mappings_of_.find(mapping.piece_);
  const bool last = --count->second == 0;
  if (!last && makes(Mistake::kMarkClearedLate)) {
    row_.mapped(mapping.piece_.index)
        ->store(mark_word(mapping.piece_.generation, 0), std::memory_order_release);
    return;
  }
  store_mark(mapping.piece_);
  if (last) mappings_of_.erase(count);
}

bool ImportCache::all_open(const PieceName& piece) const {
  bool any = false;
  auto entry = table_.lower_bound(Key{piece, std::numeric_limits<int>::min()});
  for (; entry != table_.end() && entry->first.first == piece; ++entry) {
    if (entry->second->base() == nullptr) return false;
    any = true;
  }
  return any;
}

// Of a piece that nobody has begun to map, which may not be one at all, nothing is said.
void ImportCache::store_mark(const PieceName& piece) {
  const auto count = mappings_of_.find(piece);
  if (count == mappings_of_.end()) return;
  const std::uint64_t flags =
      count->second == 0 ? 0 : kMarkMapped | (all_open(piece) ? kMarkOpen : 0);
  row_.mapped(piece.index)->store(mark_word(piece.generation, flags), std::memory_order_release);
}

}  // namespace limbo
