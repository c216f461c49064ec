// Views of the shared tables: a base address and capacities, handing out references to words.
// Nothing here is checked; indices are the caller's business, and so is the mapping's life.
#pragma once

#include <cstddef>
#include <cstdint>

#include "ipc/layout.h"
#include "ipc/protocol/publish.h"

namespace limbo {

// One consumer's row: what claim.h, release.h, note.h and sweep.h call `Row`.
class RowView {
 public:
  RowView() = default;
  RowView(void* base, const Capacities& capacities)
      : base_(static_cast<std::byte*>(base)),
        layout_(row_layout(capacities)),
        capacities_(capacities) {}

  [[nodiscard]] std::uint32_t claims() const noexcept { return capacities_.claims; }
  [[nodiscard]] std::uint32_t pieces() const noexcept { return capacities_.pieces; }
  [[nodiscard]] std::uint32_t groups() const noexcept {
    return capacities_.claims / protocol::kGroupClaims;
  }
  [[nodiscard]] SharedWord* lease_dirty_host() const noexcept {
    return &reinterpret_cast<RowHeader*>(base_)->lease_dirty_host;
  }
  [[nodiscard]] SharedWord* lease_dirty_gpu() const noexcept {
    return &reinterpret_cast<RowHeader*>(base_)->lease_dirty_gpu;
  }
  [[nodiscard]] SharedWord* group_dirty_host(std::uint32_t group) const noexcept {
    return words(layout_.group_dirty_host) + group;
  }
  [[nodiscard]] SharedWord* group_dirty_gpu(std::uint32_t group) const noexcept {
    return words(layout_.group_dirty_gpu) + group;
  }
  [[nodiscard]] SharedWord* claim(std::uint32_t slot) const noexcept {
    return words(layout_.claims) + slot;
  }
  // mark_word
  [[nodiscard]] SharedWord* mapped(std::uint32_t piece) const noexcept {
    return words(layout_.mapped) + piece;
  }

 private:
  [[nodiscard]] SharedWord* words(std::size_t offset) const noexcept {
    return reinterpret_cast<SharedWord*>(base_ + offset);
  }

  std::byte* base_ = nullptr;
  RowLayout layout_;
  Capacities capacities_;
};

// One export: what publish.h calls `ExportRow`.
class ExportView {
 public:
  explicit ExportView(ExportRow* row) : row_(row) {}

  [[nodiscard]] SharedWord* word() const noexcept { return &row_->word; }
  // In the order of protocol::ExportField.
  [[nodiscard]] SharedWord* field(std::size_t i) const noexcept { return &row_->word + 1 + i; }

 private:
  ExportRow* row_;
};
static_assert(offsetof(ExportRow, point_number) ==
              8 * (1 + static_cast<std::size_t>(protocol::ExportField::kPointNumber0)));
static_assert(offsetof(ExportRow, upstream) ==
              8 * (1 + static_cast<std::size_t>(protocol::ExportField::kUpstream)));

// The producer's ledger. Consumers map it read-only and only load.
class LedgerView {
 public:
  LedgerView() = default;
  LedgerView(void* base, const Capacities& capacities)
      : base_(static_cast<std::byte*>(base)),
        layout_(ledger_layout(capacities)),
        capacities_(capacities) {}

  [[nodiscard]] const Capacities& capacities() const noexcept { return capacities_; }
  [[nodiscard]] LedgerHeader& header() const noexcept {
    return *reinterpret_cast<LedgerHeader*>(base_ + layout_.header);
  }
  [[nodiscard]] PieceRow& piece(std::uint32_t index) const noexcept {
    return reinterpret_cast<PieceRow*>(base_ + layout_.pieces)[index];
  }
  [[nodiscard]] ExportRow& export_row(std::uint32_t index) const noexcept {
    return reinterpret_cast<ExportRow*>(base_ + layout_.exports)[index];
  }
  [[nodiscard]] SharedWord* export_word(std::uint32_t index) const noexcept {
    return &export_row(index).word;
  }
  // As many as there are exports: what upstream.h calls `Ledger`.
  [[nodiscard]] std::uint32_t upstream_rows() const noexcept { return capacities_.exports; }
  [[nodiscard]] SharedWord* upstream_where(std::uint32_t index) const noexcept {
    return &upstream_row(index).where;
  }
  [[nodiscard]] SharedWord* upstream_number(std::uint32_t index) const noexcept {
    return &upstream_row(index).number;
  }
  [[nodiscard]] SharedWord* upstream_next(std::uint32_t index) const noexcept {
    return &upstream_row(index).next;
  }

 private:
  [[nodiscard]] UpstreamRow& upstream_row(std::uint32_t index) const noexcept {
    return reinterpret_cast<UpstreamRow*>(base_ + layout_.upstream)[index];
  }

  std::byte* base_ = nullptr;
  LedgerLayout layout_;
  Capacities capacities_;
};

}  // namespace limbo
