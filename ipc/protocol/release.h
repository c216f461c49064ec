// Releases that a stream writes: HELD -> RELEASED behind the work that used the block.
//
// | word           | who            | to                         | order                       |
// |----------------|----------------|----------------------------|-----------------------------|
// | claim          | consumer's GPU | RELEASED                   | first in the batch          |
// | GPU's of group | consumer's GPU | a number never used before | behind every RELEASED of it |
// | GPU's of row   | consumer's GPU | a number never used before | last in the batch           |
//
// Default flags (never without memory barrier): the writes of a batch land in order. Streams race
// with each other, so a dirty word may go from a higher number to a lower one; since no number is
// ever used twice, the producer sees a change all the same.
//
// A death while a batch is on its way: the writes land or they do not; the row is swept when the
// consumer is quiet, so when no write can come any more. The row is never used again.
//
// release_by_host (claim.h) is the same transition by the host.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include "ipc/protocol/claim.h"

namespace limbo::protocol {

struct Release {
  std::uint32_t slot = 0;
  ClaimTarget target;
};

// Writes one batch for the first n of `releases`, as many as fit into `room` operations, by calling
// `write(Row's reference, value)` in the order in which they must land; returns n. 0: `room` is
// less than three. What is left over needs a batch of its own, with its own dirty words.
// `next_number()` gives numbers that no dirty word of this row was ever set to.
template <class Row, class NextNumber, class Write>
std::size_t write_release_batch(const Row& row, std::span<const Release> releases, std::size_t room,
                                NextNumber&& next_number, Write&& write) {
  const auto group_of = [&](std::size_t i) { return releases[i].slot / kGroupClaimsOf<Row>; };
  const auto first_of_its_group = [&](std::size_t i) {
    for (std::size_t j = 0; j < i; ++j) {
      if (group_of(j) == group_of(i)) return false;
    }
    return true;
  };

  std::size_t count = 0;
  for (std::size_t operations = 1; count < releases.size(); ++count) {
    operations += first_of_its_group(count) ? 2 : 1;
    if (operations > room) break;
  }
  if (count == 0) return 0;

  const auto write_claims = [&] {
    for (std::size_t i = 0; i < count; ++i) {
      write(row.claim(releases[i].slot), claim_bits(releases[i].target, ClaimState::kReleased));
    }
  };
  const auto number = [&] { return makes(Mistake::kNumberUsedTwice) ? 1 : next_number(); };
  if (!makes(Mistake::kDirtyFirst)) write_claims();
  for (std::size_t i = 0; i < count; ++i) {
    if (first_of_its_group(i)) write(row.group_dirty_gpu(group_of(i)), number());
  }
  write(row.lease_dirty_gpu(), number());
  if (makes(Mistake::kDirtyFirst)) write_claims();
  return count;
}

}  // namespace limbo::protocol
