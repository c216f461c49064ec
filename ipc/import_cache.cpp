#include "ipc/import_cache.h"

#include "ipc/fail_points.h"
#include "ipc/protocol/mistakes.h"

namespace limbo {

std::atomic<std::uint64_t> ImportCache::uses_{0};

ImportCache::ImportCache(Device& device, RowView row, LedgerView ledger)
    : device_(device), row_(row), ledger_(ledger) {}

Mapping* ImportCache::hold(const PieceFacts& piece, int device) {
  Mapping* mapping = find_or_make(piece, device);
  try {
    LIMBO_FAIL_POINT("receive.after_mark_mapped");
    const std::lock_guard opening(mapping->opening_);
    if (mapping->base() == nullptr) open(*mapping);
    LIMBO_FAIL_POINT("receive.after_open");
  } catch (...) {
    let_go(mapping);
    throw;
  }
  return mapping;
}

Mapping* ImportCache::find_or_make(const PieceFacts& piece, int device) {
  const std::lock_guard lock(mutex_);
  const Key key{piece.index, piece.generation, device};
  auto entry = table_.find(key);
  if (entry == table_.end()) {
    auto& mappings = mappings_of_[piece.index];
    // Marked already where another device maps it: to mark it again would take back that it is open.
    const auto other = table_.lower_bound(Key{piece.index, piece.generation, 0});
    const bool marked = other != table_.end() && std::get<0>(other->first) == piece.index &&
                        std::get<1>(other->first) == piece.generation;
    entry = table_.emplace(key, std::make_unique<Mapping>(piece, device)).first;
    ++mappings;
    if (!marked) mark(*entry->second);
  }
  Mapping& mapping = *entry->second;
  ++mapping.holds_;
  mapping.last_use_ = uses_.fetch_add(1, std::memory_order_relaxed);
  return &mapping;
}

void ImportCache::open(Mapping& mapping) {
  void* base = device_.open_memory(mapping.device_, mapping.piece_.handle);
  mapping.base_.store(base, std::memory_order_release);
  const std::lock_guard lock(mutex_);
  store_mark(mapping, kMarkMapped | kMarkOpen);
  ++counts_.opens;
  ++counts_.mapped;
}

bool ImportCache::let_go(Mapping* mapping) noexcept {
  const std::lock_guard lock(mutex_);
  if (--mapping->holds_ > 0) return false;
  if (mapping->base() != nullptr) return true;
  unmark(*mapping);  // it was never opened
  table_.erase(key_of(*mapping));
  return false;
}

std::vector<ImportCache::Idle> ImportCache::idle() {
  std::vector<Idle> idle;
  const std::lock_guard lock(mutex_);
  for (const auto& [key, mapping] : table_) {
    if (mapping->holds_ > 0) continue;
    const PieceFacts& piece = mapping->piece_;
    const std::uint64_t word = ledger_.piece(piece.index).word.load(std::memory_order_acquire);
    const bool wanted = piece_generation(word) != piece.generation ||
                        (word & kPieceUnmapWanted) != 0 || (word & kPieceInUse) == 0;
    idle.push_back({mapping.get(), piece.size_bytes, mapping->last_use_, wanted});
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
    unmark(*mapping);
    closing_.erase(mapping);
  }
  LIMBO_FAIL_POINT("unmap.after_clear");
}

ImportCounts ImportCache::counts() {
  const std::lock_guard lock(mutex_);
  return counts_;
}

// The mark is behind HELD and its dirty words and before the open; the release of the claim, and so
// everything that the producer concludes from it, comes after it.
void ImportCache::mark(const Mapping& mapping) {
  store_mark(mapping, kMarkMapped);
}

void ImportCache::store_mark(const Mapping& mapping, std::uint64_t flags) {
  row_.mapped(mapping.piece_.index)
      ->store(mark_word(mapping.piece_.generation, flags), std::memory_order_release);
}

void ImportCache::unmark(const Mapping& mapping) {
  const auto count = mappings_of_.find(mapping.piece_.index);
  const bool last = --count->second == 0;
  if (last) mappings_of_.erase(count);
  if (!last && !protocol::makes(protocol::Mistake::kMarkClearedLate)) return;
  store_mark(mapping, 0);
}

}  // namespace limbo
