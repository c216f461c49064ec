#include "ipc/ledger_exports.h"

#include <algorithm>
#include <new>
#include <string>
#include <utility>

#include "allocator/error.h"
#include "ipc/fail_points.h"
#include "ipc/protocol/mistakes.h"

namespace limbo {
namespace {

using protocol::EndReason;
using protocol::ExportState;
using protocol::ExportWord;
using protocol::Mistake;

// Names in LeaseSets: of processes, since promises are made to processes. One that has lost its
// connection comes back by another lease, as the same process.
constexpr std::uint64_t kOwner = 1;
std::uint64_t name_of(const Lease& lease) {
  const ProcessIdentity& who = lease.peer().identity;
  std::uint64_t name = 0;
  for (const std::uint64_t part : {who.incarnation.high, who.incarnation.low,
                                   static_cast<std::uint64_t>(who.pid), who.process}) {
    name = (name + part) * 0x9e37'79b9'7f4a'7c15ULL;
    name ^= name >> 32;
  }
  return name > kOwner ? name : name + 2;
}

}  // namespace

Exports::Exports(LedgerView ledger)
    : ledger_(ledger),
      records_(ledger.capacities().exports),
      seen_(ledger.capacities().exports),
      upstream_(ledger),
      candidates_(records_, ExportListKind::kCandidates),
      idle_(records_, ExportListKind::kIdle),
      deadlines_(records_, ledger.capacities().exports) {}

// ---- what the protocol's functions ask ------------------------------------------------------

void Exports::claimed(std::uint32_t index, const Lease& lease) noexcept {
  take_off_first_of(name_of(lease), index);
}

void Exports::claimed_by_owner(std::uint32_t index) noexcept {
  take_off_first_of(kOwner, index);
}

void Exports::declined(std::uint32_t index, const Lease& lease) noexcept {
  if (protocol::makes(Mistake::kDeclineCountsAgain)) return take_off_one(index);
  take_off_first_of(name_of(lease), index);
}

// Where one process was promised, zero in flight says that it came already.
void Exports::take_off_first_of(std::uint64_t claimer, std::uint32_t index) noexcept {
  ExportRecord& record = records_[index];
  if (protocol::makes(Mistake::kClaimsCountedPerOpen)) return take_off_one(index);
  if (record.in_flight > 0 && record.promised > 1 && !seen_.insert(index, claimer)) return;
  take_off_one(index);
}

void Exports::take_off_one(std::uint32_t index) noexcept {
  ExportRecord& record = records_[index];
  if (record.in_flight == 0 && !protocol::makes(Mistake::kCountBelowZero)) return;
  --record.in_flight;
  --counts_.in_flight;
  if (record.in_flight == 0) deadlines_.remove(index);
  changed(index);
}

void Exports::held_more(std::uint32_t index, Lease& lease, std::uint32_t slot) noexcept {
  ++records_[index].held;
  lease.mirrored(slot, pass_time());
  changed(index);
}

void Exports::held_less(std::uint32_t index, Lease& lease, std::uint32_t slot) noexcept {
  --records_[index].held;
  lease.unmirrored(slot);
  changed(index);
}

void Exports::over(std::uint32_t index) noexcept {
  ExportRecord& record = records_[index];
  take_out(index);
  record.over_next = std::exchange(over_, index + 1);
  ++counts_.closed;
  if (protocol::is_last_generation(record.generation)) ++counts_.retired;
}

// A holder was found, and told by held_more; or nobody knows, and it is looked at again.
void Exports::stays(std::uint32_t index, bool complete) noexcept {
  if (!complete) changed(index);
}

// ---- the beginning --------------------------------------------------------------------------

std::optional<std::uint32_t> Exports::take_slot() noexcept {
  if (free_ == 0) free_ = returned_.exchange(0, std::memory_order_acquire);
  if (free_ != 0) {
    const std::uint32_t index = free_ - 1;
    free_ = records_[index].over_next;
    return index;
  }
  if (next_fresh_ == capacity()) return std::nullopt;
  const std::uint32_t index = next_fresh_++;
  word(index)->store(
      protocol::encode(ExportWord{first_generation_, EndReason::kClosed, ExportState::kFree}),
      std::memory_order_relaxed);
  return index;
}

std::optional<std::uint32_t> Exports::reserve(const BlockView& block, std::uint64_t offset_bytes,
                                              std::uint64_t size_bytes, std::uint32_t piece_index,
                                              std::chrono::milliseconds time_limit,
                                              std::uint32_t consumers) noexcept {
  const auto index = take_slot();
  if (!index) return std::nullopt;
  ExportRecord& record = *new (&records_[*index]) ExportRecord;
  record.block = block;
  record.generation = read(*index).generation;
  record.offset_bytes = offset_bytes;
  record.size_bytes = size_bytes;
  record.piece_index = piece_index;
  record.counts_from = ProducerClock::now();
  record.time_limit = time_limit;
  record.promised = consumers;
  record.in_flight = consumers;
  record.in_use = true;
  void*& note = Allocator::lender_note(block.block);
  record.block_next = link_of(note);
  if (record.block_next != 0) records_[record.block_next - 1].block_previous = *index + 1;
  note = note_of(*index + 1);
  ++counts_.open;
  counts_.in_flight += consumers;
  return index;
}

void Exports::open(std::uint32_t index, const protocol::ExportFields& fields) noexcept {
  protocol::open_export(protocol::g_memory, ExportView(&ledger_.export_row(index)),
                        records_[index].generation, fields);
}

void Exports::cancel(std::uint32_t index) noexcept {
  take_out(index);
  records_[index].over_next = std::exchange(free_, index + 1);
}

void Exports::cancel_later(std::uint32_t index) noexcept {
  take_out(index);
  records_[index].over_next = std::exchange(over_, index + 1);
}

// Its record means nothing any more, but for the block, which is pinned still.
void Exports::take_out(std::uint32_t index) noexcept {
  ExportRecord& record = records_[index];
  counts_.in_flight -= record.in_flight;
  leave_lists(index);
  deadlines_.remove(index);
  unlink_from_block(index);
  forget(index);
  record.in_use = false;
  --counts_.open;
}

void Exports::forget(std::uint32_t index) noexcept {
  ExportRecord& record = records_[index];
  seen_.clear(index);
  if (Forwarder* forwarder = record.forwarder) {
    --forwarder->exports;
    forwarder->rows -= record.upstream.count;
    --counts_.forwards;
    counts_.forwards_rows -= record.upstream.count;
  }
  upstream_.clear(record.upstream);
  if (Forwarder* forwarder = std::exchange(record.forwarder, nullptr)) forwarder->forget(index);
}

Shortage Exports::room_to_forward(const Forwarder* forwarder) const noexcept {
  if (forwarder != nullptr && forwarder->exports >= share_of(capacity(), kLeaseShare))
    return Shortage::kLease;
  return counts_.forwards >= share_of(capacity(), kForwardsShare) ? Shortage::kForwards
                                                                  : Shortage::kNone;
}

Shortage Exports::forwards(std::uint32_t index, std::uint32_t from, Forwarder& forwarder,
                           std::span<const NamedNumber> also, bool lost) noexcept {
  ExportRecord& record = records_[index];
  const ExportRecord& held = records_[from];
  record.forwarder = &forwarder;
  ++forwarder.named;
  std::copy(std::begin(held.own), std::end(held.own), std::begin(record.own));
  if (held.let_go) {
    record.let_go = true;
    set_deadline(index);
  }
  if (lost) upstream_.lose(record.upstream);
  const Shortage shortage = name_upstream(record, held, also);
  ++forwarder.exports;
  ++counts_.forwards;
  forwarder.rows += record.upstream.count;
  counts_.forwards_rows += record.upstream.count;
  if (shortage != Shortage::kNone || record.upstream.count == 0) return shortage;
  if (forwarder.rows > share_of(capacity(), kLeaseShare)) return Shortage::kLease;
  return counts_.forwards_rows > share_of(capacity(), kForwardsShare) ? Shortage::kForwards
                                                                      : Shortage::kNone;
}

Shortage Exports::name_upstream(ExportRecord& record, const ExportRecord& held,
                                std::span<const NamedNumber> also) noexcept {
  for (const TimelinePoint& point : held.points) {
    if (point.owner == 0 || point.number == 0) continue;
    const Shortage shortage = upstream_.add(record.upstream, point, *held.forwarder);
    if (shortage != Shortage::kNone) return shortage;
  }
  const Shortage shortage = upstream_.add_all(record.upstream, held.upstream);
  if (shortage != Shortage::kNone) return shortage;
  for (const NamedNumber& number : also) {
    const Shortage more = upstream_.add(record.upstream, number.point, *number.forwarder);
    if (more != Shortage::kNone) return more;
  }
  return Shortage::kNone;
}

// ---- the end --------------------------------------------------------------------------------

void Exports::let_go(void* lender_note, ProducerClock::time_point now) noexcept {
  for (ExportLink link = link_of(lender_note); link != 0; link = records_[link - 1].block_next) {
    const std::uint32_t index = link - 1;
    ExportRecord& record = records_[index];
    if (record.let_go) continue;
    record.let_go = true;
    record.counts_from = std::max(record.counts_from, now);
    if (record.in_flight > 0 ||
        (record.held > 0 && protocol::makes(protocol::Mistake::kTtlOnHeld))) {
      set_deadline(index);
    } else if (!protocol::makes(protocol::Mistake::kDirtyOnlyCandidates)) {
      changed(index);
    }
  }
}

void Exports::set_deadline(std::uint32_t index) noexcept {
  const ExportRecord& record = records_[index];
  deadlines_.push(index, record.counts_from + record.time_limit);
}

void Exports::clear_in_flight(std::uint32_t index) noexcept {
  counts_.in_flight -= std::exchange(records_[index].in_flight, 0);
  deadlines_.remove(index);
  changed(index);
}

bool Exports::drain(std::uint32_t index, std::uint64_t generation, EndReason reason) noexcept {
  if (!protocol::drain_export(protocol::g_memory, word(index), generation, reason)) return false;
  LIMBO_FAIL_POINT("drain.after_draining");
  clear_in_flight(index);
  ++(reason == EndReason::kExpired ? counts_.expired : counts_.withdrawn);
  return true;
}

std::uint64_t Exports::expire(ProducerClock::time_point now) noexcept {
  std::uint64_t expired = 0;
  while (!deadlines_.empty()) {
    const std::uint32_t index = deadlines_.earliest();
    ExportRecord& record = records_[index];
    if (record.deadline > now) break;
    if (read(index).state == ExportState::kOpen && record.counts_from < record.sent) {
      // Freed before it was sent: the sender stood behind a full stream meanwhile.
      deadlines_.remove(index);
      record.counts_from = record.sent;
      set_deadline(index);
    } else if (drain(index, record.generation, EndReason::kExpired)) {
      ++expired;
    } else {
      // Freed while it is being shared: it is not open yet. Its time begins later.
      deadlines_.remove(index);
      record.counts_from = now + std::chrono::milliseconds(1);
      set_deadline(index);
    }
  }
  return expired;
}

std::optional<ProducerClock::time_point> Exports::next_deadline() const noexcept {
  if (deadlines_.empty()) return std::nullopt;
  return records_[deadlines_.earliest()].deadline;
}

void Exports::changed(std::uint32_t index) noexcept {
  ExportRecord& record = records_[index];
  if (record.list == ExportListKind::kCandidates) return;
  leave_lists(index);
  candidates_.push_back(index);
}

void Exports::leave_lists(std::uint32_t index) noexcept {
  if (records_[index].list == ExportListKind::kCandidates) candidates_.remove(index);
  if (records_[index].list == ExportListKind::kIdle) idle_.remove(index);
}

void Exports::unlink_from_block(std::uint32_t index) noexcept {
  ExportRecord& record = records_[index];
  if (record.block_next != 0) {
    records_[record.block_next - 1].block_previous = record.block_previous;
  }
  if (record.block_previous != 0) {
    records_[record.block_previous - 1].block_next = record.block_next;
  } else {
    Allocator::lender_note(record.block.block) = note_of(record.block_next);
  }
  record.block_next = record.block_previous = 0;
}

bool Exports::may_close(std::uint32_t index) const noexcept {
  const ExportRecord& record = records_[index];
  if (held(index) != 0 || record.in_flight != 0) return false;
  const ExportState state = read(index).state;
  return state == ExportState::kOpen || state == ExportState::kDraining;
}

std::size_t Exports::collect_batch(std::uint32_t* batch, std::size_t room,
                                   std::uint32_t& candidates_left) noexcept {
  std::size_t count = 0;
  for (; count < room && candidates_left > 0 && candidates_.size() > 0; --candidates_left) {
    const std::uint32_t index = candidates_.pop_front();
    if (!may_close(index)) continue;
    if (records_[index].let_go) {
      batch[count++] = index;
    } else {
      idle_.push_back(index);
    }
  }
  while (count < room && idle_.size() > 0 && counts_.open > count + capacity() / 2) {
    batch[count++] = idle_.pop_front();
  }
  return count;
}

std::uint64_t Exports::finish_over(ExportLink chain, Allocator& allocator) {
  std::uint64_t finished = 0;
  while (chain != 0) {
    const std::uint32_t index = chain - 1;
    ExportRecord& record = records_[index];
    chain = record.over_next;
    LIMBO_FAIL_POINT("collect.before_unpin");
    allocator.unpin(record.block.block);
    LIMBO_FAIL_POINT("collect.after_unpin");
    ++finished;
    if (protocol::is_last_generation(record.generation)) continue;
    record.over_next = returned_.load(std::memory_order_relaxed);
    while (!returned_.compare_exchange_weak(record.over_next, index + 1, std::memory_order_release,
                                            std::memory_order_relaxed)) {
    }
  }
  return finished;
}

// ---- looking --------------------------------------------------------------------------------

ProducerClock::time_point Exports::pass_time() noexcept {
  if (!pass_time_) pass_time_ = ProducerClock::now();
  return *pass_time_;
}

void Exports::check_invariants(const std::vector<std::uint32_t>& mirrors) {
  const auto check = [](bool holds, std::uint32_t index, const char* rule) {
    if (holds) return;
    throw Error(ErrorCode::kInternal, "Export " + std::to_string(index) + ": " + rule + ".");
  };
  std::uint64_t open = 0;
  std::uint64_t in_flight = 0;
  std::uint64_t listed = 0;
  std::uint64_t with_deadline = 0;
  std::uint64_t forwards = 0;
  std::uint64_t forwards_rows = 0;
  for (std::uint32_t index = 0; index < next_fresh_; ++index) {
    const ExportRecord& record = records_[index];
    const ExportWord now = read(index);
    const std::uint32_t named = index < mirrors.size() ? mirrors[index] : 0;
    check(now.state != ExportState::kClosing, index, "is CLOSING outside a closing");
    check(record.in_use || now.state == ExportState::kFree, index, "is not FREE and has no record");
    if (!record.in_use) {
      check(named == 0, index, "is over, and a mirror names it");
      continue;
    }
    ++open;
    in_flight += record.in_flight;
    forwards += record.forwarder != nullptr ? 1 : 0;
    forwards_rows += record.forwarder != nullptr ? record.upstream.count : 0;
    listed += record.list != ExportListKind::kNone ? 1 : 0;
    with_deadline += record.heap_position != 0 ? 1 : 0;
    check(record.generation == now.generation, index, "has another generation than its record");
    check(record.held == named, index, "is held by another number of mirrors than counted");
    const std::uint32_t seen = seen_.size(index);
    check(record.in_flight <= record.promised, index, "has more in flight than were promised");
    check(seen == 0 || record.promised > 1, index,
          "knows which leases have claimed it, and was not promised to several");
    check(now.state != ExportState::kOpen || record.promised == 1 ||
              record.in_flight + seen == record.promised,
          index, "is open, and its claims and what is in flight do not add up to its promises");
    check(now.state != ExportState::kDraining || record.in_flight == 0, index,
          "is DRAINING with something in flight");
    check((record.heap_position != 0) == (record.let_go && record.in_flight > 0), index,
          "has a deadline exactly when it is in flight and its owner has let go");
    check(record.list != ExportListKind::kIdle ||
              (record.held == 0 && record.in_flight == 0 && !record.let_go),
          index, "is idle with a holder, a promise, or after its owner has let go");
    bool linked = false;
    for (ExportLink link = link_of(Allocator::lender_note(record.block.block)); link != 0;
         link = records_[link - 1].block_next) {
      check(records_[link - 1].block.block == record.block.block, link - 1,
            "hangs on a foreign block");
      linked |= link == index + 1;
    }
    check(linked, index, "does not hang on its block");
  }
  check(open == counts_.open, next_fresh_, "the number of open exports is miscounted");
  check(in_flight == counts_.in_flight, next_fresh_, "the number in flight is miscounted");
  check(forwards == counts_.forwards && forwards_rows == counts_.forwards_rows, next_fresh_,
        "what was sent on is miscounted");
  check(listed == candidates_.size() + idle_.size(), next_fresh_, "the lists are miscounted");
  check(with_deadline == deadlines_.size(), next_fresh_, "the deadlines are miscounted");
}

}  // namespace limbo
