// The sweep: a row whose consumer has ended and whose GPU work has ended, so that nobody writes it.
//
// | word  | from     | to   | who              | order   | why a death here is harmless     |
// |-------|----------|------|------------------|---------|----------------------------------|
// | claim | HELD,    | FREE | producer, under  | release | the row, and all that is private |
// |       | RELEASED |      | the collect lock |         | about it, dies with the producer |
//
// Once per row, ignoring the dirty words: the consumer may have died between a claim and its dirty
// words. A swept claim is a claim: the first of the row on an export takes one off in flight.
#pragma once

#include <cstdint>

#include "ipc/protocol/note.h"

namespace limbo::protocol {

// Returns the number of claims that the row held or had released unseen.
template <class Memory, class Row, class Exports>
std::uint64_t sweep_row(Memory& memory, Row& row, Exports& exports) {
  std::uint64_t swept = 0;
  for (std::uint32_t slot = 0; slot < row.groups() * kGroupClaimsOf<Row>; ++slot) {
    const ClaimWord word = decode_claim(memory.load(row.claim(slot), std::memory_order_acquire));
    std::uint64_t& mirror = row.mirror(slot);
    if (mirror != 0) {
      const std::uint32_t export_index = decode_claim(mirror).export_index;
      mirror = 0;
      exports.held_less(export_index, row, slot);
      ++swept;
    } else if (word.state == ClaimState::kHeld || word.state == ClaimState::kReleased) {
      if (names_an_export(memory, exports, word)) {
        exports.claimed(word.export_index, row);
        ++swept;
      }
    }
    if (word.state != ClaimState::kFree) {
      memory.store(row.claim(slot), 0, std::memory_order_release);
    }
  }
  return swept;
}

// Whether a row has neither a claim nor a mirror. Asked when its consumer says that nothing is left;
// what it writes there afterwards nobody reads, so that it can harm only itself.
template <class Memory, class Row>
bool row_is_free(Memory& memory, Row& row) {
  for (std::uint32_t slot = 0; slot < row.groups() * kGroupClaims; ++slot) {
    if (row.mirror(slot) != 0 || memory.load(row.claim(slot), std::memory_order_acquire) != 0) {
      return false;
    }
  }
  return true;
}

}  // namespace limbo::protocol
