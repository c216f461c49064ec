// Leases and pieces of a producer.
#include <algorithm>
#include <limits>
#include <thread>
#include <utility>

#include "allocator/error.h"
#include "ipc/fail_points.h"
#include "ipc/producer_impl.h"
#include "ipc/protocol/sweep.h"

namespace limbo {
namespace {

using protocol::Look;

}  // namespace

// ---- leases ---------------------------------------------------------------------------------

std::uint32_t take_lease_number(std::atomic<std::uint64_t>& next) {
  constexpr std::uint64_t kLeases = std::numeric_limits<std::uint32_t>::max();
  const std::uint64_t number = next.fetch_add(1, std::memory_order_relaxed);
  if (number < kLeases) return static_cast<std::uint32_t>(number);
  throw Error(ErrorCode::kLedgerFull,
              "This process has given out all of its " + std::to_string(kLeases) + " leases.",
              "Start it anew.");
}

Lease* Producer::Impl::find_lease(std::uint32_t lease_number) {
  const auto found = std::find_if(leases.begin(), leases.end(), [&](const auto& lease) {
    return lease->number() == lease_number;
  });
  return found == leases.end() ? nullptr : found->get();
}

// A lease is in the list before its descriptors are handed out, so that no closing can miss a claim
// made by means of them. Undoing a pin can record events, and the reaper, who calls this, must not
// wait for the device: pins that fall due are left to the next collect.
LeaseGrant Producer::add_lease(const LeasePeer& peer) {
  Impl& impl = *impl_;
  const std::uint32_t number = take_lease_number(impl.next_lease_number);
  auto timelines = std::make_shared<LeaseTimelines>(
      impl.device,
      SharedMemory::create("limbo-timelines-" + std::to_string(number),
                           timelines_bytes(impl.capacities), ReceiverMay::kWrite),
      impl.capacities.timelines);
  auto lease = std::make_unique<Lease>(number, peer, impl.capacities, impl.row_scans_per_second,
                                       std::move(timelines));
  const LeaseGrant grant{.lease_number = number,
                         .capacities = impl.capacities,
                         .ledger_fd = impl.ledger_memory.fd(),
                         .timelines_fd = impl.timelines.fd(),
                         .row_fd = lease->memory().fd(),
                         .own_timelines_fd = lease->timelines()->fd()};
  LIMBO_FAIL_POINT("lease.before_listed");
  {
    Impl::Hold hold(impl);
    try {
      impl.leases.push_back(std::move(lease));
    } catch (...) {
      hold.leave_unpins_to_the_next();
      throw;
    }
    if (protocol::makes(protocol::Mistake::kLeaseListedLate)) ++impl.listed_late;
    hold.leave_unpins_to_the_next();
  }
  LIMBO_FAIL_POINT("lease.after_listed");
  return grant;
}

void Producer::lease_gone(std::uint32_t lease_number, const std::string& why) {
  Impl::Hold hold(*impl_);
  Lease* lease = impl_->find_lease(lease_number);
  if (lease == nullptr) return;
  lease->gone = true;
  lease->why = why;
}

void Producer::Impl::end_lease(std::uint32_t lease_number, bool quiet) {
  std::unique_ptr<Lease> swept;  // unmapped after the unlock
  {
    Hold hold(*this);
    if (Forwarder* forwarder = find_forwarder(lease_number)) {
      forwarder->timelines->complete();
      withdraw_unheard(*forwarder);
      forwarder->quiet |= quiet;
    }
    const auto found = std::find_if(leases.begin(), leases.end(), [&](const auto& lease) {
      return lease->number() == lease_number;
    });
    if (found == leases.end()) return;
    LIMBO_FAIL_POINT("lease.before_sweep");
    claims_swept += protocol::sweep_row(protocol::g_memory, **found, exports);
    ++leases_swept;
    swept = std::move(*found);
    leases.erase(found);
    run_pass(Look::kChanged);
    LIMBO_FAIL_POINT("lease.after_sweep");
  }
}

void Producer::lease_quiet(std::uint32_t lease_number) {
  impl_->end_lease(lease_number, true);
}

void Producer::lease_forced(std::uint32_t lease_number) {
  impl_->end_lease(lease_number, false);
}

bool Producer::lease_left(std::uint32_t lease_number) {
  Impl& impl = *impl_;
  std::unique_ptr<Lease> left;  // unmapped after the unlock
  {
    Impl::Hold hold(impl);
    const auto found = std::find_if(impl.leases.begin(), impl.leases.end(), [&](const auto& lease) {
      return lease->number() == lease_number;
    });
    if (found == impl.leases.end()) return false;
    LIMBO_FAIL_POINT("lease.before_left");
    protocol::note_row(protocol::g_memory, **found, impl.exports, std::memory_order_acquire,
                       Look::kEverything);
    const bool marks = (*found)->maps_anything(impl.pieces.touched());
    // Whoever waits for what it has forwarded needs to know when its process ends.
    const bool forwards = impl.find_forwarder(lease_number) != nullptr;
    if (!marks && !forwards && protocol::row_is_free(protocol::g_memory, **found)) {
      left = std::move(*found);
      impl.leases.erase(found);
    }
    impl.run_pass(Look::kChanged);
    LIMBO_FAIL_POINT("lease.after_left");
  }
  return left != nullptr;
}

void Producer::decline(std::uint32_t lease_number, std::uint32_t export_index,
                       std::uint64_t generation) {
  Impl& impl = *impl_;
  Impl::Hold hold(impl);
  const Lease* lease = impl.find_lease(lease_number);
  const protocol::ClaimWord word{generation, export_index, protocol::ClaimState::kHeld};
  if (lease == nullptr || !protocol::names_an_export(protocol::g_memory, impl.exports, word))
    return;
  impl.exports.declined(export_index, *lease);
  LIMBO_FAIL_POINT("declined.after_count");
  impl.run_pass(Look::kChanged);
}

void Producer::decline_own(std::uint32_t export_index, std::uint64_t generation) {
  Impl& impl = *impl_;
  Impl::Hold hold(impl);
  const protocol::ClaimWord word{generation, export_index, protocol::ClaimState::kHeld};
  if (!protocol::names_an_export(protocol::g_memory, impl.exports, word)) return;
  impl.exports.claimed_by_owner(export_index);
  impl.run_pass(Look::kChanged);
}

void Producer::row_half_full(std::uint32_t lease_number) {
  Impl::Hold hold(*impl_);
  if (impl_->find_lease(lease_number) != nullptr) impl_->run_pass(Look::kChanged);
}

void Producer::lease_lost_context(std::uint32_t lease_number) {
  Impl::Hold hold(*impl_);
  Lease* lease = impl_->find_lease(lease_number);
  if (lease == nullptr) return;
  if (!lease->gone) lease->why = "its GPU context is lost";
  impl_->run_pass(Look::kChanged);
}

void* Producer::row_mapping(std::uint32_t lease_number) {
  Impl::Hold hold(*impl_);
  const Lease* lease = impl_->find_lease(lease_number);
  return lease == nullptr ? nullptr : lease->memory().data();
}

// ---- pieces (the table of their words is in pieces.h) ---------------------------------------

// Leases in quarantine count: their GPU work may still run.
bool Producer::Impl::is_mapped(std::uint32_t piece_index) const {
  const std::uint64_t generation = pieces.record(piece_index).generation;
  return std::any_of(leases.begin(), leases.end(),
                     [&](const auto& lease) { return lease->maps(piece_index, generation); });
}

bool Producer::may_return_piece(std::uint64_t piece_id) {
  Impl::Hold hold(*impl_);
  const auto index = impl_->pieces.find(piece_id);
  if (!index) return true;  // never lent
  impl_->pieces.set_unmap_wanted(*index, true);
  LIMBO_FAIL_POINT("piece.after_flag");
  const bool mapped = impl_->is_mapped(*index);
  impl_->pieces.set_refused(*index, mapped);
  return !mapped;
}

void Producer::piece_returned(std::uint64_t piece_id) {
  Impl::Hold hold(*impl_);
  if (const auto index = impl_->pieces.find(piece_id)) impl_->pieces.retire(*index);
  LIMBO_FAIL_POINT("piece.after_returned");
}

// Tells of each piece once, until the allocator asks for it again: what it wanted once may be in use
// by now, and must not keep it from waiting for the others.
bool Producer::wait_for_unmapped_pieces(int device, std::chrono::milliseconds at_most) {
  Impl& impl = *impl_;
  const auto deadline = ProducerClock::now() + at_most;
  for (;;) {
    bool any_unmapped = false;
    bool any_mapped = false;
    {
      Impl::Hold hold(impl);
      for (std::uint32_t index = 0; index < impl.pieces.touched(); ++index) {
        const PieceRecord& piece = impl.pieces.record(index);
        if (!piece.refused || piece.device != device) continue;
        const bool mapped = impl.is_mapped(index);
        any_mapped |= mapped;
        any_unmapped |= !mapped;
        if (!mapped) impl.pieces.set_refused(index, false);
      }
    }
    if (any_unmapped) return true;
    if (!any_mapped || ProducerClock::now() >= deadline) return false;
    // Consumers clear their marks in shared memory and tell nobody.
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

}  // namespace limbo
