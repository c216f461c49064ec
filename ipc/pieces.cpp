#include "ipc/pieces.h"

#include <cstring>
#include <string>

#include "allocator/error.h"

namespace limbo {

std::optional<std::uint32_t> Pieces::find(std::uint64_t piece_id) const {
  const auto found = index_of_.find(piece_id);
  if (found == index_of_.end()) return std::nullopt;
  return found->second;
}

std::uint32_t Pieces::insert(std::uint64_t piece_id, int device, const Uuid& device_uuid,
                             std::uint64_t size_bytes, const MemoryHandle& handle) {
  std::uint32_t index = 0;
  if (!free_.empty()) {
    index = free_.back();
  } else if (records_.size() < ledger_.capacities().pieces) {
    index = static_cast<std::uint32_t>(records_.size());
    // Room for every record's index: retire takes no memory, and a record that is made is listed.
    if (free_.capacity() <= records_.size()) free_.reserve(2 * records_.size() + 1);
    records_.emplace_back();
    free_.push_back(index);
  } else {
    throw Error(ErrorCode::kLedgerFull,
                "All " + std::to_string(records_.size()) + " pieces of the ledger are in use.",
                "Raise the option ledger_pieces, or share out of fewer segments.");
  }
  index_of_.emplace(piece_id, index);
  free_.pop_back();

  PieceRow& row = ledger_.piece(index);
  std::uint64_t words[8];
  std::memcpy(words, device_uuid.bytes.data(), device_uuid.bytes.size());
  row.uuid[0].store(words[0], std::memory_order_relaxed);
  row.uuid[1].store(words[1], std::memory_order_relaxed);
  std::memcpy(words, handle.bytes.data(), sizeof(words));
  for (int i = 0; i < 8; ++i) row.handle[i].store(words[i], std::memory_order_relaxed);
  row.handle_kind.store(static_cast<std::uint64_t>(handle.kind), std::memory_order_relaxed);
  row.size_bytes.store(size_bytes, std::memory_order_relaxed);

  PieceRecord& record = records_[index];
  record = {.piece_id = piece_id,
            .generation = record.generation + 1,
            .size_bytes = size_bytes,
            .device = device,
            .device_uuid = device_uuid,
            .in_use = true,
            .unmap_wanted = false};
  store_word(index);
  return index;
}

void Pieces::set_unmap_wanted(std::uint32_t index, bool wanted) noexcept {
  if (!wanted) records_[index].refused = false;
  if (records_[index].unmap_wanted == wanted) return;
  records_[index].unmap_wanted = wanted;
  store_word(index);
}

void Pieces::retire(std::uint32_t index) noexcept {
  free_.push_back(index);
  PieceRecord& record = records_[index];
  index_of_.erase(record.piece_id);
  record.in_use = false;
  record.unmap_wanted = false;
  record.refused = false;
  ++record.generation;
  store_word(index);
}

void Pieces::store_word(std::uint32_t index) noexcept {
  const PieceRecord& record = records_[index];
  const std::uint64_t word = (record.generation << 2) | (record.in_use ? kPieceInUse : 0) |
                             (record.unmap_wanted ? kPieceUnmapWanted : 0);
  ledger_.piece(index).word.store(word, std::memory_order_release);
}

}  // namespace limbo
