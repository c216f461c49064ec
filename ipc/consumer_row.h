// The host's side of one consumer's row: which claim slots are free, and which releases are still
// on their way.
//
// A slot goes round: free -> held (a received block has it) -> landing (its release is enqueued,
// parked or stored) -> noted (RELEASED was read; the producer has yet to free it) -> free; or it is
// retired, where a context was lost with a release enqueued. Slots
// are taken first in, first out, and a slot is free again only when FREE was read *and* its release
// was struck off here: both happen in one place, under one lock, so a release can never be struck
// off after its slot was taken again.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <optional>

#include "ipc/protocol/claim.h"
#include "ipc/protocol/mistakes.h"
#include "ipc/slot_queue.h"
#include "ipc/views.h"

namespace limbo {

class ConsumerRow {
 public:
  explicit ConsumerRow(RowView row);

  [[nodiscard]] const RowView& view() const noexcept { return row_; }

  // A free slot for a claim; nothing when there is none. Strikes off what the producer has freed
  // when half of the row or more is in use.
  [[nodiscard]] std::optional<std::uint32_t> take();
  // True when no slot is held, landing or retired: then none is taken any more.
  [[nodiscard]] bool close_if_unused();
  // The same where slots may be retired: true when none is occupied.
  [[nodiscard]] bool close_unless_occupied();
  [[nodiscard]] bool is_closed();
  // Gives a slot back that was never HELD.
  void untake(std::uint32_t slot) noexcept;

  // RELEASED was stored by the host or read: the slot waits for the producer to free it. (A slot
  // whose word may still change behind our back is never passed here, and so never taken again.)
  void released(std::uint32_t slot) noexcept;
  // The slot is never used again: a write that may still come would end a later claim.
  void retire(std::uint32_t slot);
  // Whether the release of `slot` has landed.
  [[nodiscard]] bool landed(std::uint32_t slot) const noexcept {
    return protocol::decode_claim(row_.claim(slot)->load(std::memory_order_acquire)).state !=
           protocol::ClaimState::kHeld;
  }

  // True once for every time that the row becomes half full of what the producer should note.
  [[nodiscard]] bool wants_bell();
  [[nodiscard]] bool half_full();
  // Whether the producer, by noting the row, could make room. The bell may ring again.
  [[nodiscard]] bool waits_for_producer();
  // Slots that are neither free nor waiting for the producer.
  [[nodiscard]] std::uint32_t occupied();

  // A number that no dirty word of this row was ever set to by the GPU.
  [[nodiscard]] std::uint64_t next_number() noexcept {
    return number_.fetch_add(1, std::memory_order_relaxed) + 1;
  }

 private:
  void strike_off();
  [[nodiscard]] std::optional<std::uint32_t> reads_free() const;
  [[nodiscard]] std::uint32_t used() const noexcept { return row_.claims() - free_.size(); }

  const RowView row_;
  std::atomic<std::uint64_t> number_{0};

  std::mutex mutex_;  // a leaf; guards what follows
  SlotQueue free_;
  SlotQueue noted_;  // RELEASED or FREE was read
  std::uint32_t retired_ = 0;
  bool bell_rung_ = false;
  bool closed_ = false;
};

}  // namespace limbo
