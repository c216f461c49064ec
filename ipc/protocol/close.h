// Closing: how the producer makes sure that nobody holds an export, or can come to hold it.
//
// The word's table is in publish.h. The order of the three steps is the point:
//
// | step               | order   | why                                                       |
// |--------------------|---------|-----------------------------------------------------------|
// | 1. CLOSING in all  | seq_cst | claimers: {dirty, seq_cst} before {read export, seq_cst}. |
// |                    |         | Either a claimer sees CLOSING, or step 3 sees it dirty.   |
// | 2. read the leases | -       | A lease is put into the list, under the collect lock,     |
// |                    |         | before its descriptors are handed out: one that is not in |
// |                    |         | the list has not claimed yet, and will see CLOSING.       |
// | 3. note every row  | seq_cst | see 1                                                     |
// | 4. verdicts        | release | who reads OPEN or FREE sees what was decided before it    |
//
// A producer that dies, or is stopped, between 1 and 4 leaves CLOSING behind: claimers read again
// for at most 1 ms and then give up; whoever was promised the block never meets CLOSING.
#pragma once

#include <cstdint>

#include "ipc/protocol/note.h"

namespace limbo::protocol {

// DRAINING is what has a reason; OPEN is what has none. So CLOSING, which keeps the bits, knows
// where to go back to.
constexpr ExportWord reopened(const ExportWord& closing) noexcept {
  return {closing.generation, closing.reason,
          closing.reason == EndReason::kClosed ? ExportState::kOpen : ExportState::kDraining};
}

// Whether the slot can have no generation after this one, so that it is retired when it is over.
constexpr bool is_last_generation(std::uint64_t generation) noexcept {
  return generation >= kMaxGeneration;
}

// The reason bits stay, for the error text of late claimers.
constexpr ExportWord closed(const ExportWord& closing) noexcept {
  const std::uint64_t next =
      is_last_generation(closing.generation) ? closing.generation : closing.generation + 1;
  return {next, closing.reason, ExportState::kFree};
}

// close_batch, below.
template <class Memory, class Exports, class Batch, class Leases>
void close_listed(Memory& memory, Exports& exports, const Batch& batch, Leases&& leases) {
  bool complete = true;
  const auto note_rows = [&] {
    for (auto&& row : leases()) {
      complete &= note_row(memory, *row, exports, std::memory_order_seq_cst, Look::kChanged);
    }
  };
  if (makes(Mistake::kScanBeforeClosing)) note_rows();
  LIMBO_FAIL_POINT("close.before_closing");
  for (const std::uint32_t index : batch) {
    ExportWord word = decode_export(memory.load(exports.word(index), std::memory_order_relaxed));
    word.state = ExportState::kClosing;
    memory.store(exports.word(index), encode(word), std::memory_order_seq_cst);
  }
  LIMBO_FAIL_POINT("close.after_closing");
  if (!makes(Mistake::kScanBeforeClosing)) note_rows();
  LIMBO_FAIL_POINT("close.before_verdict");
  for (const std::uint32_t index : batch) {
    const ExportWord word =
        decode_export(memory.load(exports.word(index), std::memory_order_relaxed));
    const bool over = complete && exports.held(index) == 0;
    memory.store(exports.word(index), encode(over ? closed(word) : reopened(word)),
                 std::memory_order_release);
    if (over) {
      exports.over(index);
    } else {
      exports.stays(index, complete);
    }
  }
  LIMBO_FAIL_POINT("close.after_verdict");
}

// Closes what nobody holds of `batch`, a range of export indices that are OPEN or DRAINING, with
// nothing in flight and no known holder. `leases()` returns a range of (smart) pointers to rows.
// Exports has, besides what noting needs: held(index), over(index) for those that are FREE now, and
// stays(index, complete) for those that went back; `complete` false: not because of a holder, but
// because some row had no scans left, so that nobody knows.
template <class Memory, class Exports, class Batch, class Leases>
void close_batch(Memory& memory, Exports& exports, const Batch& batch, Leases&& leases) {
  if (makes(Mistake::kLeasesBeforeClosing)) {
    auto&& early = leases();
    return close_listed(
        memory, exports, batch, [&]() -> auto& { return early; });
  }
  close_listed(memory, exports, batch, leases);
}

}  // namespace limbo::protocol
