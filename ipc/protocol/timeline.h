// How a timeline ends: its owner's GPU work will not come, and whoever waits for it is let pass, but
// has to know what it did not get.
//
// | word     | from  | to    | who                          | order       | why a death is harmless     |
// |----------|-------|-------|------------------------------|-------------|-----------------------------|
// | ended_at | 0     | n + 1 | whoever ends it first; n is  | acq_rel,    | nobody has been let pass;   |
// |          |       |       | what the stream had reached  | before      | the next one ends it, and n |
// |          |       |       |                              | `value`     | stands (orphan.after_mark)  |
// | value    | n     | n + 1 | the stream that it belongs   | in stream   | of the owner: see below     |
// |          |       |       | to                           | order       |                             |
// | value    | any   | 2^62  | the owner, whose context is  | release     | all who wait do it, each    |
// |          |       |       | lost; all who wait, when it  |             | for itself                  |
// |          |       |       | is gone                      |             |                             |
//
// A late write of the owner's GPU may set `value` back, so it is stored again and again until that is
// quiet. `ended_at` stays: what lands behind it comes too late for those who were let pass, and counts
// as not written. A number that lands between the look and the store counts so too.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>

#include "ipc/fail_points.h"
#include "ipc/protocol/mistakes.h"
#include "ipc/protocol/words.h"

namespace limbo::protocol {

// Lets every wait pass, now and later.
template <class Memory, class Word>
void end_timeline(Memory& memory, Word value, Word ended_at) {
  const bool unmarked = memory.load(ended_at, std::memory_order_acquire) == 0;
  if (unmarked && !makes(Mistake::kEndedWithoutMark)) {
    const std::uint64_t reached = memory.load(value, std::memory_order_acquire);
    if (makes(Mistake::kMarkedAfterEnd)) {
      memory.store(value, kTimelineEnded, std::memory_order_release);
    }
    std::uint64_t none = 0;
    (void)memory.compare_exchange(ended_at, none, std::min(reached, kTimelineEnded) + 1,
                                  std::memory_order_acq_rel);
    LIMBO_FAIL_POINT("orphan.after_mark");
  }
  memory.store(value, kTimelineEnded, std::memory_order_release);
}

// Whether who waited for `number` was let pass without it. Whoever has seen its stream pass sees it.
template <class Memory, class Word>
bool ended_before(Memory& memory, Word ended_at, std::uint64_t number) {
  const std::uint64_t end = memory.load(ended_at, std::memory_order_acquire);
  return number != 0 && end != 0 && end <= number;
}

enum class Arrival : std::uint8_t { kPending, kCame, kLost };

// The same, while it may still be on its way. kCame and kLost are for ever: a number that was reached
// lies before every end that is written later. (`value` first: who ends it writes it last.)
template <class Memory, class Word>
Arrival arrival_of(Memory& memory, Word value, Word ended_at, std::uint64_t number) {
  const std::uint64_t reached = memory.load(value, std::memory_order_acquire);
  const std::uint64_t end = memory.load(ended_at, std::memory_order_acquire);
  if (end != 0) return end <= number ? Arrival::kLost : Arrival::kCame;
  return reached >= number ? Arrival::kCame : Arrival::kPending;
}

}  // namespace limbo::protocol
