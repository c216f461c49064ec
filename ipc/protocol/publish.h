// An export's beginning and its drain.
//
// Export word, in the ledger. Only the producer writes it: OPEN from the sharing thread, all else
// under the collect lock.
//
// | from           | to                   | when                  | order   | a death here      |
// |----------------|----------------------|-----------------------|---------|-------------------|
// | FREE           | OPEN                 | share (open_export)   | release | no descriptor has |
// |                |                      |                       |         | left yet          |
// | OPEN           | DRAINING             | withdraw, time limit  | release | the ledger dies   |
// |                |                      | (drain_export)        |         | with its producer |
// | OPEN, DRAINING | CLOSING              | close.h               | seq_cst | claimers give up  |
// |                |                      |                       |         | after 1 ms        |
// | CLOSING        | OPEN or DRAINING     | close.h, holder found | release | as above          |
// | CLOSING        | FREE, generation + 1 | close.h, none found   | release | as above          |
//
// The fields beside the word are written before OPEN (relaxed; OPEN publishes them) and read only
// behind a claim that stands.
#pragma once

#include <array>
#include <cstdint>

#include "ipc/protocol/memory.h"
#include "ipc/protocol/mistakes.h"
#include "ipc/protocol/words.h"

namespace limbo::protocol {

// The fields of an export, in the order in which they lie behind its word.
enum class ExportField : std::uint8_t {
  kFirstPiece,
  kPieceGeneration,
  kPieceCount,
  kOffsetBytes,
  kSizeBytes,
  kPointWhere0,
  kPointWhere1,
  kPointNumber0,
  kPointNumber1,
  kUpstream,
};
inline constexpr std::size_t kExportFields = 10;
using ExportFields = std::array<std::uint64_t, kExportFields>;

constexpr std::uint64_t& at(ExportFields& fields, ExportField field) noexcept {
  return fields[static_cast<std::size_t>(field)];
}
constexpr std::uint64_t at(const ExportFields& fields, ExportField field) noexcept {
  return fields[static_cast<std::size_t>(field)];
}

// FREE -> OPEN. `row.field(i)` and `row.word()` name the shared words.
template <class Memory, class ExportRow>
void open_export(Memory& memory, const ExportRow& row, std::uint64_t generation,
                 const ExportFields& fields) {
  for (std::size_t i = 0; i < kExportFields; ++i) {
    memory.store(row.field(i), fields[i], std::memory_order_relaxed);
  }
  memory.store(row.word(), encode(ExportWord{generation, EndReason::kClosed, ExportState::kOpen}),
               std::memory_order_release);
}

// For a consumer, behind a claim that stands: reading OPEN has made the fields visible, and they
// stay as they are while the claim is held.
template <class Memory, class ExportRow>
ExportFields read_fields(Memory& memory, const ExportRow& row) {
  ExportFields fields{};
  for (std::size_t i = 0; i < kExportFields; ++i) {
    fields[i] = memory.load(row.field(i), std::memory_order_relaxed);
  }
  return fields;
}

// OPEN -> DRAINING: nobody new may claim, holders keep it. False when the export is not open in
// this generation. The caller holds the collect lock and sets its in-flight count to zero.
template <class Memory>
bool drain_export(Memory& memory, typename Memory::Ref export_word, std::uint64_t generation,
                  EndReason reason) {
  const ExportWord word = decode_export(memory.load(export_word, std::memory_order_relaxed));
  if (word.generation != generation || word.state != ExportState::kOpen) return false;
  if (makes(Mistake::kWithdrawnStaysClaimable) && reason == EndReason::kWithdrawn) return true;
  memory.store(export_word, encode(ExportWord{generation, reason, ExportState::kDraining}),
               std::memory_order_release);
  return true;
}

}  // namespace limbo::protocol
