// Noting: the producer compares a row's claims with its mirrors.
//
// | word  | from     | to   | who                 | order   | why a death here is harmless    |
// |-------|----------|------|---------------------|---------|---------------------------------|
// | claim | RELEASED | FREE | producer, under the | release | mirrors and counts are private: |
// |       |          |      | collect lock        |         | they die with the producer      |
//
// What the producer keeps privately, per slot: a mirror, which is the HELD word that it noted there
// (0: none). A slot with a mirror reacts only to RELEASED of the mirrored export and generation, or
// to the sweep. `held` changes by the mirror, never by the word: whatever a broken consumer writes,
// it can let go only of what it was noted to hold.
//
// `Row` has, besides the words of the row:
//   groups(), seen_lease(), seen_group(g), mirror(slot)  references to private state
//   may_scan()                                           one more group may be scanned now
//   has_mirrors(g)                                       some slot of the group has a mirror
// `Exports` has
//   capacity(), word(index)
//   claimed(index, row)                        the first claim of a row on an export takes one off
//                                              in flight
//   held_more(index, row, slot), held_less(index, row, slot)
#pragma once

#include <cstdint>

#include "ipc/fail_points.h"
#include "ipc/protocol/claim.h"

namespace limbo::protocol {

// What a pair of dirty words said before the last scan.
struct Seen {
  std::uint64_t host = 0;
  std::uint64_t gpu = 0;

  friend constexpr bool operator==(const Seen&, const Seen&) = default;
};

enum class Look : std::uint8_t {
  kChanged,     // the groups whose dirty words changed
  kEverything,  // every group that was ever used, whatever the dirty words say
};

// Whether a claim word counts: it names an export that is not FREE, in its generation. The acquire
// pairs with the release that opened the export, which stands behind the setting up of its private
// record; a record is looked at only after this.
template <class Memory, class Exports>
bool names_an_export(Memory& memory, Exports& exports, const ClaimWord& claim) {
  if (claim.export_index >= exports.capacity()) return false;
  const ExportWord word =
      decode_export(memory.load(exports.word(claim.export_index), std::memory_order_acquire));
  return word.state != ExportState::kFree && word.generation == claim.generation;
}

template <class Memory, class Row, class Exports>
void note_slot(Memory& memory, Row& row, Exports& exports, std::uint32_t slot) {
  const std::uint64_t bits = memory.load(row.claim(slot), std::memory_order_acquire);
  const ClaimWord word = decode_claim(bits);
  std::uint64_t& mirror = row.mirror(slot);
  if (mirror != 0) {
    const ClaimWord noted = decode_claim(mirror);
    if (word != ClaimWord{noted.generation, noted.export_index, ClaimState::kReleased}) return;
    mirror = 0;
    exports.held_less(noted.export_index, row, slot);
    LIMBO_FAIL_POINT("note.before_free");
    memory.store(row.claim(slot), 0, std::memory_order_release);
    return;
  }
  if (word.state == ClaimState::kHeld) {
    if (!names_an_export(memory, exports, word)) return;  // the claimer will see that and release
    mirror = bits;
    exports.claimed(word.export_index, row);
    exports.held_more(word.export_index, row, slot);
  } else if (word.state == ClaimState::kReleased) {
    // Claimed and released between two looks. It was claimed all the same.
    if (names_an_export(memory, exports, word)) exports.claimed(word.export_index, row);
    LIMBO_FAIL_POINT("note.before_free");
    memory.store(row.claim(slot), 0, std::memory_order_release);
  }
}

// Notes what changed in the row. `dirty_order`: acquire, or seq_cst in a closing (there the reads
// must stand behind the stores of CLOSING). False: the row has used up its scans for now, and some
// change may be unseen.
template <class Memory, class Row, class Exports>
bool note_row(Memory& memory, Row& row, Exports& exports, std::memory_order dirty_order,
              Look look) {
  // Last seen is what was read before the scan: a change during the scan is found by the next one.
  const auto read_lease = [&] {
    return Seen{memory.load(row.lease_dirty_host(), dirty_order),
                memory.load(row.lease_dirty_gpu(), dirty_order)};
  };
  const auto read_group = [&](std::uint32_t group) {
    return Seen{memory.load(row.group_dirty_host(group), dirty_order),
                memory.load(row.group_dirty_gpu(group), dirty_order)};
  };
  const Seen lease = read_lease();
  if (look == Look::kChanged && lease == row.seen_lease()) return true;
  bool complete = true;
  for (std::uint32_t group = 0; group < row.groups(); ++group) {
    const Seen seen = read_group(group);
    const bool wanted = look == Look::kChanged ? seen != row.seen_group(group)
                                               : seen != Seen{} || row.has_mirrors(group);
    if (!wanted) continue;
    if (look == Look::kChanged && !row.may_scan()) {
      complete = false;
      break;
    }
    for (std::uint32_t i = 0; i < kGroupClaimsOf<Row>; ++i) {
      note_slot(memory, row, exports, group * kGroupClaimsOf<Row> + i);
    }
    row.seen_group(group) = makes(Mistake::kSeenAfterScan) ? read_group(group) : seen;
  }
  if (complete) row.seen_lease() = makes(Mistake::kSeenAfterScan) ? read_lease() : lease;
  return complete;
}

}  // namespace limbo::protocol
