// Forwarding: a consumer that holds an export asks its owner for another one of the same block, to
// send it on. The owner counts every holder itself; the consumer keeps its claim until the answer.
//
// | word       | from | to   | who                           | order   | why a death is harmless     |
// |------------|------|------|-------------------------------|---------|-----------------------------|
// | claim of   | as in note.h: RELEASED is noted first       |         | private counts die with     |
// | the asker  |                                             |         | the owner                   |
// | new export | FREE | OPEN | owner, under the collect lock | release | of the owner: the ledger    |
// |            |      |      | (open_export)                 |         | dies too. Of the asker:     |
// |            |      |      |                               |         | what it has not heard of is |
// |            |      |      |                               |         | withdrawn when it is quiet; |
// |            |      |      |                               |         | what it has not sent on     |
// |            |      |      |                               |         | since then expires          |
//
// The new export lasts, unopened, as long as the asker wishes, and as the one that it holds at most:
// the owner has agreed to no more, and the asker may be dead by then.
//
// Steps of the owner, all under the collect lock: may_forward; a slot; a pin more on the block,
// which the asker's export still pins; what has not come yet (upstream.h), of the export that is held
// and of what the asker names beside it, where an export of the owner's names that forwarder still;
// OPEN. Nothing here unpins or calls back: a forward that fails behind its pin hangs it on the chain of
// exports that are over.
#pragma once

#include <cstdint>

#include "ipc/protocol/note.h"

namespace limbo::protocol {

// Whether the holder of claim slot `slot` may send `target` on: kStands, or why not. Its slot is
// noted first, whatever the dirty words say, and only the mirror is believed: a claim that was
// released or swept, or was never made, pins nothing any more. An export that was withdrawn or has
// expired is not forwarded, though its holders keep it.
template <class Memory, class Row, class Exports>
ClaimVerdict may_forward(Memory& memory, Row& row, Exports& exports, std::uint32_t slot,
                         const ClaimTarget& target) {
  if (makes(Mistake::kForwardWithoutNote)) return ClaimVerdict::kStands;
  if (slot >= row.groups() * kGroupClaimsOf<Row>) return ClaimVerdict::kGone;
  note_slot(memory, row, exports, slot);
  if (row.mirror(slot) != claim_bits(target, ClaimState::kHeld)) return ClaimVerdict::kGone;
  return verdict_of(
      decode_export(memory.load(exports.word(target.export_index), std::memory_order_acquire)),
      target.generation);
}

}  // namespace limbo::protocol
