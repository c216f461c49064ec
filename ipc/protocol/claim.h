// A consumer's side of a claim word: taking a slot, claiming, and the dirty words.
//
// Claim word, in the consumer's row:
//
// | from           | to       | who                    | order   | why a death here is harmless   |
// |----------------|----------|------------------------|---------|--------------------------------|
// | FREE           | HELD     | consumer's host (hold) | relaxed | the sweep reads every slot,    |
// |                |          |                        |         | whatever the dirty words say   |
// | HELD           | RELEASED | consumer's host        | release | as above; the sweep takes      |
// |                |          | (release_by_host), or  |         | RELEASED like HELD             |
// |                |          | its GPU (release.h)    |         |                                |
// | RELEASED       | FREE     | producer (note.h)      | release | the row dies with its producer |
// | HELD, RELEASED | FREE     | producer (sweep.h)     | release | as above                       |
//
// Dirty words, in the consumer's row: one pair for every group of kGroupClaims claims, one pair for
// the row.
//
// | word             | who                   | how                                       |
// |------------------|-----------------------|-------------------------------------------|
// | host's, of group | consumer's host, then | fetch_add 1: seq_cst behind HELD, release |
// | host's, of row   | this one              | behind RELEASED                           |
// | GPU's, of group  | consumer's GPU, then  | set to a number never used before, in one |
// | GPU's, of row    | this one              | batch behind RELEASED (release.h)         |
//
// A death between a claim word and its dirty words hides the change only until the sweep.
#pragma once

#include <cstdint>

#include "ipc/fail_points.h"
#include "ipc/protocol/memory.h"
#include "ipc/protocol/mistakes.h"
#include "ipc/protocol/words.h"

namespace limbo::protocol {

// Which export a claim is on.
struct ClaimTarget {
  std::uint32_t export_index = 0;
  std::uint64_t generation = 0;

  friend constexpr bool operator==(const ClaimTarget&, const ClaimTarget&) = default;
};

constexpr std::uint64_t claim_bits(const ClaimTarget& target, ClaimState state) noexcept {
  return encode(ClaimWord{target.generation, target.export_index, state});
}

enum class ClaimVerdict : std::uint8_t {
  kStands,     // the claim holds; the export's fields may be read now
  kClosing,    // the producer is deciding: read again, for at most 1 ms
  kGone,       // the export is over
  kWithdrawn,  // its sender took it back
  kExpired,    // its time was over
};

constexpr ClaimVerdict verdict_by_reason(EndReason reason) noexcept {
  if (reason == EndReason::kWithdrawn) return ClaimVerdict::kWithdrawn;
  if (reason == EndReason::kExpired) return ClaimVerdict::kExpired;
  return ClaimVerdict::kGone;
}

// What an export's word says to somebody whose descriptor has `generation`. The reason bits are
// believed only with that generation, or with one higher and FREE: else they are another send's.
constexpr ClaimVerdict verdict_of(const ExportWord& word, std::uint64_t generation) noexcept {
  if (word.generation == generation) {
    if (word.state == ExportState::kOpen) return ClaimVerdict::kStands;
    if (word.state == ExportState::kClosing) return ClaimVerdict::kClosing;
    return verdict_by_reason(word.reason);
  }
  if (word.generation == generation + 1 && word.state == ExportState::kFree) {
    return verdict_by_reason(word.reason);
  }
  return ClaimVerdict::kGone;
}

// Whether the consumer may take the slot: the producer has freed it. The acquire pairs with the
// producer's release, so that a new HELD cannot be ordered before the old word's end.
// (The consumer takes slots first in, first out, and only after its reaper has struck the slot's
// earlier release off its list.)
template <class Memory, class Row>
bool slot_is_free(Memory& memory, const Row& row, std::uint32_t slot) {
  return decode_claim(memory.load(row.claim(slot), std::memory_order_acquire)).state ==
         ClaimState::kFree;
}

// Group, then row: the producer reads row, then group.
template <class Memory, class Row>
void mark_dirty(Memory& memory, const Row& row, std::uint32_t slot, std::memory_order order) {
  memory.fetch_add(row.group_dirty_host(slot / kGroupClaimsOf<Row>), 1, order);
  LIMBO_FAIL_POINT("dirty.between_group_and_lease");
  memory.fetch_add(row.lease_dirty_host(), 1, order);
}

// Steps 1 and 2 of claiming. The dirty words are sequentially consistent, because the export is
// read behind them and the producer stores CLOSING before it reads them: one of the two sees the
// other. HELD itself is relaxed; the dirty words publish it.
template <class Memory, class Row>
void hold(Memory& memory, const Row& row, std::uint32_t slot, const ClaimTarget& target) {
  memory.store(row.claim(slot), claim_bits(target, ClaimState::kHeld), std::memory_order_relaxed);
  LIMBO_FAIL_POINT("claim.after_held");
  mark_dirty(memory, row, slot, std::memory_order_seq_cst);
  LIMBO_FAIL_POINT("claim.after_dirty");
}

// Step 3 of claiming.
template <class Memory>
ExportWord read_export(Memory& memory, typename Memory::Ref export_word) {
  return decode_export(memory.load(export_word, std::memory_order_seq_cst));
}

// HELD -> RELEASED by the host; what came before it (reads of the block, marks on pieces) is
// visible to a producer that sees it.
template <class Memory, class Row>
void release_by_host(Memory& memory, const Row& row, std::uint32_t slot,
                     const ClaimTarget& target) {
  if (makes(Mistake::kDirtyFirst)) mark_dirty(memory, row, slot, std::memory_order_release);
  memory.store(row.claim(slot), claim_bits(target, ClaimState::kReleased),
               std::memory_order_release);
  LIMBO_FAIL_POINT("release.after_released");
  if (makes(Mistake::kReleaseWithoutDirty) || makes(Mistake::kDirtyFirst)) return;
  mark_dirty(memory, row, slot, std::memory_order_release);
  LIMBO_FAIL_POINT("release.after_dirty");
}

// The whole claim, on a slot that is free and the caller's: kStands, or the slot is RELEASED again
// and the verdict says why (never kClosing). `keep_waiting()` is asked between two looks at an
// export that is CLOSING and gives up after 1 ms: a producer may have been stopped there. Whoever
// was promised the block never meets CLOSING, because that needs nothing in flight.
template <class Memory, class Row, class KeepWaiting>
ClaimVerdict claim(Memory& memory, const Row& row, std::uint32_t slot,
                   typename Memory::Ref export_word, const ClaimTarget& target,
                   KeepWaiting&& keep_waiting) {
  const ExportWord early =
      makes(Mistake::kNoRecheck) ? read_export(memory, export_word) : ExportWord{};
  hold(memory, row, slot, target);
  ExportWord word = makes(Mistake::kNoRecheck) ? early : read_export(memory, export_word);
  ClaimVerdict verdict = verdict_of(word, target.generation);
  while (verdict == ClaimVerdict::kClosing && keep_waiting()) {
    word = read_export(memory, export_word);
    verdict = verdict_of(word, target.generation);
  }
  if (verdict == ClaimVerdict::kStands) {
    LIMBO_FAIL_POINT("claim.after_verdict");
    return verdict;
  }
  if (verdict == ClaimVerdict::kClosing) verdict = verdict_by_reason(word.reason);
  LIMBO_FAIL_POINT("claim.before_undo");
  release_by_host(memory, row, slot, target);
  return verdict;
}

}  // namespace limbo::protocol
