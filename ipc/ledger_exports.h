// The producer's exports: the shared words, the private records, and what moves between them.
//
// Guarded by the collect lock, except where a function says otherwise. Nothing here unpins: exports
// that are over are chained (take_over) and finished by finish_over, outside the lock.
//
// This is what note.h, close.h and sweep.h call `Exports`.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "allocator/allocator.h"
#include "ipc/lease_sets.h"
#include "ipc/leases.h"
#include "ipc/ledger_record.h"
#include "ipc/protocol/close.h"
#include "ipc/upstream_numbers.h"
#include "ipc/views.h"

namespace limbo {

// What is sent on is its owner's export, and the owner has no word in it. So all forwards together
// have half of the table of exports, and of the rows of upstream numbers, at most: the rest is left to
// the owner's own sends, whatever its consumers do. One lease has half of that, so that none takes it
// from all others: of the default table a quarter is 262,144 messages, hundreds of models' weights.
inline constexpr std::uint32_t kForwardsShare = 2;
inline constexpr std::uint32_t kLeaseShare = 4;
[[nodiscard]] constexpr std::uint32_t share_of(std::uint32_t capacity,
                                               std::uint32_t share) noexcept {
  return std::max(capacity / share, std::uint32_t{1});
}

class Exports {
 public:
  explicit Exports(LedgerView ledger);
  Exports(const Exports&) = delete;
  Exports& operator=(const Exports&) = delete;

  // ---- what the protocol's functions ask --------------------------------------------------
  [[nodiscard]] std::uint32_t capacity() const noexcept { return ledger_.capacities().exports; }
  [[nodiscard]] SharedWord* word(std::uint32_t index) const noexcept {
    return ledger_.export_word(index);
  }
  // A claim, a swept claim and a decline are one event: the first of a lease on an export takes one
  // off in flight, later ones none. The owner itself counts as one lease. The count never goes below
  // zero: what comes after a time limit, or uninvited, finds nothing to take off.
  void claimed(std::uint32_t index, const Lease& lease) noexcept;
  void claimed_by_owner(std::uint32_t index) noexcept;
  void declined(std::uint32_t index, const Lease& lease) noexcept;
  void held_more(std::uint32_t index, Lease& lease, std::uint32_t slot) noexcept;
  void held_less(std::uint32_t index, Lease& lease, std::uint32_t slot) noexcept;
  [[nodiscard]] std::uint32_t held(std::uint32_t index) const noexcept {
    const bool ignored = protocol::makes(protocol::Mistake::kTtlOnHeld) &&
                         read(index).reason == protocol::EndReason::kExpired;
    return ignored ? 0 : records_[index].held;
  }
  void over(std::uint32_t index) noexcept;
  void stays(std::uint32_t index, bool complete) noexcept;

  // ---- the beginning ----------------------------------------------------------------------
  // Takes a slot, sets up its record and links it to its block. Nothing when the table is full.
  // `consumers`: processes that it is promised to.
  [[nodiscard]] std::optional<std::uint32_t> reserve(const BlockView& block,
                                                     std::uint64_t offset_bytes,
                                                     std::uint64_t size_bytes,
                                                     std::uint32_t piece_index,
                                                     std::chrono::milliseconds time_limit,
                                                     std::uint32_t consumers = 1) noexcept;
  // Without the lock, by the thread that reserved it: the slot becomes OPEN.
  void open(std::uint32_t index, const protocol::ExportFields& fields) noexcept;
  // Undoes reserve: the slot was not opened. The pin stays the caller's.
  void cancel(std::uint32_t index) noexcept;
  // The same, where the pin cannot be undone now: it goes to the chain of what is over.
  void cancel_later(std::uint32_t index) noexcept;
  // Whether one export more may be sent on by `forwarder`; null: by one that has sent nothing on.
  [[nodiscard]] Shortage room_to_forward(const Forwarder* forwarder) const noexcept;
  // An export was reserved for `forwarder`, of the block of another one, whose owner may have let go.
  // It is behind what that one is, and behind `also`; `lost`: and behind what will never come. Where
  // there is no room for what it has to say: cancel it.
  [[nodiscard]] Shortage forwards(std::uint32_t index, std::uint32_t from, Forwarder& forwarder,
                                  std::span<const NamedNumber> also = {},
                                  bool lost = false) noexcept;

  // ---- the end ----------------------------------------------------------------------------
  // The block's owner has freed it.
  void let_go(void* lender_note, ProducerClock::time_point now) noexcept;
  // OPEN -> DRAINING, with nothing in flight any more. False when there is no such open export.
  bool drain(std::uint32_t index, std::uint64_t generation, protocol::EndReason reason) noexcept;
  // Expires what is in flight and out of time; returns how many.
  std::uint64_t expire(ProducerClock::time_point now) noexcept;
  [[nodiscard]] std::optional<ProducerClock::time_point> next_deadline() const noexcept;

  // Moves up to `room` exports that may be closed into `batch`: candidates, and while the table is
  // more than half full also idle ones, those that have been idle longest first. `candidates_left`
  // bounds the candidates looked at and is counted down.
  std::size_t collect_batch(std::uint32_t* batch, std::size_t room,
                            std::uint32_t& candidates_left) noexcept;
  [[nodiscard]] std::uint32_t candidates() const noexcept { return candidates_.size(); }
  [[nodiscard]] bool more_than_half_full() const noexcept { return counts_.open > capacity() / 2; }

  // The chain of exports that are over, taken away; 0 if none.
  [[nodiscard]] ExportLink take_over() noexcept { return std::exchange(over_, 0); }
  void put_back_over(ExportLink chain) noexcept { over_ = chain; }  // over_ is empty
  // Without the lock: unpins each block of the chain; only then is its slot free again. Returns how
  // many.
  std::uint64_t finish_over(ExportLink chain, Allocator& allocator);

  // ---- looking ----------------------------------------------------------------------------
  [[nodiscard]] ExportRecord& record(std::uint32_t index) noexcept { return records_[index]; }
  [[nodiscard]] UpstreamNumbers& upstream() noexcept { return upstream_; }
  [[nodiscard]] protocol::ExportWord read(std::uint32_t index) const noexcept {
    return protocol::decode_export(word(index)->load(std::memory_order_acquire));
  }
  // A block's note with the allocator: the first of its exports.
  [[nodiscard]] static void* note_of(ExportLink link) noexcept {
    return reinterpret_cast<void*>(static_cast<std::uintptr_t>(link));
  }
  [[nodiscard]] static ExportLink link_of(void* note) noexcept {
    return static_cast<ExportLink>(reinterpret_cast<std::uintptr_t>(note));
  }
  // Slots that were ever used: [0, slots_touched()).
  [[nodiscard]] std::uint32_t slots_touched() const noexcept { return next_fresh_; }

  struct Counts {
    std::uint64_t open = 0;  // reserved or not FREE
    std::uint64_t in_flight = 0;
    std::uint64_t closed = 0;
    std::uint64_t expired = 0;
    std::uint64_t withdrawn = 0;
    std::uint64_t retired = 0;        // slots that have had their last generation
    std::uint32_t forwards = 0;       // of the open ones
    std::uint32_t forwards_rows = 0;  // upstream rows of these
  };
  [[nodiscard]] const Counts& counts() const noexcept { return counts_; }

  // The time of the current pass, read once; start_pass forgets it.
  void start_pass() noexcept { pass_time_.reset(); }
  [[nodiscard]] ProducerClock::time_point pass_time() noexcept;

  // Throws Error(kInternal) with the first broken invariant. `mirrors[i]` is how many mirrors name
  // export i.
  void check_invariants(const std::vector<std::uint32_t>& mirrors);

  // For tests of the last generations: the generation that the next slot never used before starts
  // with.
  void start_generations_at(std::uint64_t generation) noexcept { first_generation_ = generation; }

 private:
  [[nodiscard]] std::optional<std::uint32_t> take_slot() noexcept;
  void take_off_first_of(std::uint64_t claimer, std::uint32_t index) noexcept;
  void take_off_one(std::uint32_t index) noexcept;
  [[nodiscard]] Shortage name_upstream(ExportRecord& record, const ExportRecord& held,
                                       std::span<const NamedNumber> also) noexcept;
  void take_out(std::uint32_t index) noexcept;
  void forget(std::uint32_t index) noexcept;
  void changed(std::uint32_t index) noexcept;
  void leave_lists(std::uint32_t index) noexcept;
  void set_deadline(std::uint32_t index) noexcept;
  void clear_in_flight(std::uint32_t index) noexcept;
  void unlink_from_block(std::uint32_t index) noexcept;
  [[nodiscard]] bool may_close(std::uint32_t index) const noexcept;

  LedgerView ledger_;
  SparseArray<ExportRecord> records_;
  LeaseSets seen_;  // who counts already, of exports that were promised to several
  UpstreamNumbers upstream_;
  ExportList candidates_;
  ExportList idle_;
  DeadlineHeap deadlines_;
  ExportLink over_ = 0;
  ExportLink free_ = 0;           // linked by over_next
  std::uint32_t next_fresh_ = 0;  // slots from here on were never used
  std::uint64_t first_generation_ = 1;
  Counts counts_;
  std::optional<ProducerClock::time_point> pass_time_;
  // Slots given back, linked by over_next: pushed by anyone without the lock, taken as a whole
  // under it (so no slot can be pushed again while somebody takes it).
  std::atomic<ExportLink> returned_{0};
};

}  // namespace limbo
