// Forwarding, the owner's part (the table is in protocol/forward.h), and the forwarders' timelines.
#include <fcntl.h>

#include <algorithm>
#include <list>
#include <string>
#include <utility>

#include "allocator/error.h"
#include "ipc/fail_points.h"
#include "ipc/packet.h"
#include "ipc/producer_impl.h"
#include "ipc/protocol/forward.h"

namespace limbo {
namespace {

using protocol::ClaimVerdict;

OwnedFd duplicate(int fd) {
  return OwnedFd(::fcntl(fd, F_DUPFD_CLOEXEC, 0));
}

void check(const ForwardRequest& request, const Capacities& capacities) {
  if (request.consumers < 1 || request.consumers > static_cast<std::uint32_t>(kMostConsumers) ||
      request.time_limit.count() < 0 || request.size_bytes == 0) {
    throw Error(ErrorCode::kBadArgument, "A message cannot be sent on with " +
                                             std::to_string(request.size_bytes) + " bytes to " +
                                             std::to_string(request.consumers) + " consumers for " +
                                             std::to_string(request.time_limit.count()) + " ms.");
  }
  for (const TimelinePoint& point : request.points) {
    if (point.number > protocol::kTimelineEnded) {
      throw Error(ErrorCode::kBadArgument, "It names number " + std::to_string(point.number) +
                                               " of a timeline, which none ever reaches.");
    }
    if (point.number == 0 || point.index < capacities.timelines) continue;
    throw Error(ErrorCode::kBadArgument, "It names timeline " + std::to_string(point.index) +
                                             " of " + std::to_string(capacities.timelines) + ".");
  }
  const bool others = request.also_behind.size() <= protocol::kMostUpstream &&
                      std::all_of(request.also_behind.begin(), request.also_behind.end(),
                                  [&](const TimelinePoint& point) {
                                    return point.owner != 0 && point.index < capacities.timelines &&
                                           point.number != 0 &&
                                           point.number <= protocol::kTimelineEnded;
                                  });
  if (!others) {
    throw Error(ErrorCode::kBadArgument, "What it says that it is behind cannot be.");
  }
}

[[noreturn]] void throw_not_forwarded(ClaimVerdict verdict) {
  if (verdict == ClaimVerdict::kWithdrawn) {
    throw Error(ErrorCode::kWithdrawn,
                "The message by which this memory came was taken back, so it cannot be sent on.",
                "Send a clone() of it.");
  }
  if (verdict == ClaimVerdict::kExpired) {
    throw Error(ErrorCode::kExpired,
                "The message by which this memory came is past its time limit, so it cannot be "
                "sent on.",
                "Send a clone() of it.");
  }
  throw Error(ErrorCode::kGone, "Its owner does not know that this process holds the memory.",
              "Send memory on while it is held.");
}

bool can_drop(const Forwarder& forwarder) {
  return forwarder.named == 0 && forwarder.quiet;
}

[[noreturn]] void throw_no_room(Shortage shortage, const Capacities& capacities) {
  const auto of_table = [&](std::uint32_t share) {
    return std::to_string(share_of(capacities.exports, share)) + " of the " +
           std::to_string(capacities.exports) +
           " exports, or of the rows beside them that name earlier senders' unfinished work.";
  };
  std::string what;
  std::string advice =
      "Let go of what was sent on before, raise the option ledger_exports in the owner, or send a "
      "clone().";
  switch (shortage) {
    case Shortage::kList:
      what = "The memory is behind " + std::to_string(protocol::kMostUpstream) +
             " numbers of earlier senders that have not come, as many as a message may name.";
      advice = "Wait until the work of those who sent it on before is done, or send a clone().";
      break;
    case Shortage::kLease:
      what =
          "What this process has sent on takes as much of the owner's ledger as one process may: " +
          of_table(kLeaseShare);
      break;
    case Shortage::kForwards:
      what =
          "What was sent on takes as much of the owner's ledger as all processes together may: " +
          of_table(kForwardsShare);
      break;
    case Shortage::kRows:
    case Shortage::kNone:
      what = "All " + std::to_string(capacities.exports) +
             " rows of its owner's ledger that name earlier senders' unfinished work are in use.";
      break;
  }
  throw Error(ErrorCode::kLedgerFull, what, advice);
}

// Whoever has lost its connection speaks over the next one. A pid alone may be another process's once
// the forwarder has ended.
bool is_of(const Lease* lease, const Forwarder& forwarder) {
  if (lease == nullptr) return false;
  const ProcessIdentity& identity = lease->peer().identity;
  if (identity != forwarder.identity || !identity.is_known()) return false;
  return identity.process != 0 || !is_readable(forwarder.signs->pidfd.get());
}

// Inside the range that the asker was given.
bool is_inside(const ForwardRequest& request, const ExportRecord& held) {
  return request.offset_bytes >= held.offset_bytes && request.size_bytes <= held.size_bytes &&
         request.offset_bytes - held.offset_bytes <= held.size_bytes - request.size_bytes;
}

}  // namespace

Forwarder* Producer::Impl::find_forwarder(std::uint32_t lease_number) {
  const auto found = std::find_if(forwarders.begin(), forwarders.end(), [&](const auto& forwarder) {
    return forwarder.lease_number == lease_number;
  });
  return found == forwarders.end() ? nullptr : &*found;
}

// Whoever has received a message keeps its claim, in the order of its stream, until everything that
// it is behind has come or ended; so what is still to come is named by that message's export.
void Producer::Impl::find_named(const ForwardRequest& request, std::vector<NamedNumber>& also) {
  for (const TimelinePoint& point : request.also_behind) {
    Forwarder* forwarder = find_forwarder(point.owner - 1);
    const bool is_known =
        forwarder != nullptr &&
        (forwarder->named > 0 ||
         forwarder->timelines->arrival(point.index, point.number) != protocol::Arrival::kPending);
    if (!is_known) {
      throw Error(ErrorCode::kNotAvailableYet,
                  "What the memory was said to be behind has come meanwhile, or has ended.",
                  "Ask again.");
    }
    also.push_back({point, forwarder});
  }
}

std::uint32_t Producer::Impl::forward(std::uint32_t lease_number, const ForwardRequest& request,
                                      std::list<Forwarder>& spare, std::vector<NamedNumber>& also) {
  // Before the verdict: a pass may end the export that is held, and what it was made of goes with it.
  if (exports.more_than_half_full()) run_pass(protocol::Look::kChanged);
  Lease* lease = find_lease(lease_number);
  if (lease == nullptr || request.held.export_index >= capacities.exports) {
    throw_not_forwarded(ClaimVerdict::kGone);
  }
  const ClaimVerdict verdict =
      protocol::may_forward(protocol::g_memory, *lease, exports, request.slot, request.held);
  LIMBO_FAIL_POINT("forward.after_note");
  if (verdict != ClaimVerdict::kStands) throw_not_forwarded(verdict);

  const ExportRecord& held = exports.record(request.held.export_index);
  if (!is_inside(request, held)) {
    throw Error(ErrorCode::kBadArgument,
                "The range to be sent on does not lie in the one that was received.");
  }
  find_named(request, also);
  Forwarder* forwarder = find_forwarder(lease_number);
  if (const Shortage shortage = exports.room_to_forward(forwarder); shortage != Shortage::kNone) {
    throw_no_room(shortage, capacities);
  }
  const auto index =
      exports.reserve(held.block, request.offset_bytes, request.size_bytes, held.piece_index,
                      std::min(request.time_limit, held.time_limit), request.consumers);
  if (!index) {
    throw Error(ErrorCode::kLedgerFull,
                "All " + std::to_string(capacities.exports) +
                    " exports of its owner's ledger are in flight or held.",
                "Raise the option ledger_exports there, or let go of what is held.");
  }
  try {
    allocator.pin_again(held.block.block);
  } catch (...) {
    exports.cancel(*index);
    throw;
  }
  try {
    LIMBO_FAIL_POINT("forward.after_pin");
  } catch (...) {
    exports.cancel_later(*index);
    throw;
  }

  auto unheard = spare.front().unheard.extract(spare.front().unheard.begin());
  if (forwarder == nullptr) {
    forwarders.splice(forwarders.end(), spare);
    forwarder = &forwarders.back();
    forwarder->lease_number = lease_number;
    forwarder->identity = lease->peer().identity;
    forwarder->timelines = lease->timelines();
  } else if (forwarder->named == 0) {
    forwarder->signs = std::move(spare.front().signs);
  }
  unheard.value() = *index;
  forwarder->unheard.insert(std::move(unheard));
  if (const Shortage shortage =
          exports.forwards(*index, request.held.export_index, *forwarder, also, request.also_lost);
      shortage != Shortage::kNone) {
    exports.cancel_later(*index);
    throw_no_room(shortage, capacities);
  }
  ExportRecord& record = exports.record(*index);
  record.sent = ProducerClock::now();
  for (std::size_t i = 0; i < 2; ++i) {
    if (request.points[i].number == 0) continue;
    record.points[i] = {lease_number + 1, request.points[i].index, request.points[i].number};
  }
  if (protocol::makes(protocol::Mistake::kForwardWithoutOwnPoints)) {
    std::copy(std::begin(held.points), std::end(held.points), std::begin(record.points));
  }
  const PieceRecord& piece = pieces.record(record.piece_index);
  pieces.set_unmap_wanted(record.piece_index, false);
  exports.open(*index, fields_of({.export_index = *index,
                                  .generation = record.generation,
                                  .piece_index = record.piece_index,
                                  .piece_generation = piece.generation,
                                  .piece_size_bytes = piece.size_bytes,
                                  .piece_count = 1,
                                  .offset_bytes = record.offset_bytes,
                                  .size_bytes = record.size_bytes,
                                  .points = {record.points[0], record.points[1]},
                                  .device_uuid = piece.device_uuid},
                                 record.upstream));
  return *index;
}

protocol::ClaimTarget Producer::forward(std::uint32_t lease_number, const ForwardRequest& request,
                                        int pidfd, int life_line, std::uint32_t life_line_flags) {
  Impl& impl = *impl_;
  check(request, impl.capacities);
  const auto signs = std::make_shared<const ForwarderSigns>(
      ForwarderSigns{duplicate(pidfd), duplicate(life_line), life_line_flags});
  if (!signs->pidfd.valid() || !signs->life_line.valid()) {
    throw Error(ErrorCode::kNoChannel, "Its owner has no file descriptors left.");
  }
  std::list<Forwarder> spare(1);
  spare.front().signs = signs;
  spare.front().unheard.insert(0);  // the place of the export's
  std::vector<NamedNumber> also;
  also.reserve(request.also_behind.size());
  protocol::ClaimTarget made;
  {
    Impl::Hold hold(impl);
    try {
      made.export_index = impl.forward(lease_number, request, spare, also);
      made.generation = impl.exports.record(made.export_index).generation;
    } catch (...) {
      hold.leave_unpins_to_the_next();
      throw;
    }
    hold.leave_unpins_to_the_next();
  }
  impl.forwards.fetch_add(1, std::memory_order_relaxed);
  LIMBO_FAIL_POINT("forward.after_open");
  return made;
}

void Producer::take_back(std::uint32_t lease_number, std::uint32_t export_index,
                         std::uint64_t generation) {
  Impl& impl = *impl_;
  if (export_index >= impl.capacities.exports) return;
  Impl::Hold hold(impl);
  if (export_index >= impl.exports.slots_touched()) return;
  const ExportRecord& record = impl.exports.record(export_index);
  if (!record.in_use || record.forwarder == nullptr) return;
  const bool its_own = record.forwarder->lease_number == lease_number ||
                       is_of(impl.find_lease(lease_number), *record.forwarder);
  if (!its_own) return;
  if (!impl.exports.drain(export_index, generation, protocol::EndReason::kWithdrawn)) return;
  impl.run_pass(protocol::Look::kChanged);
}

void Producer::heard(std::uint32_t lease_number, const protocol::ClaimTarget& made) {
  Impl& impl = *impl_;
  bool is_unheard = false;
  {
    Impl::Hold hold(impl);
    Forwarder* forwarder = impl.find_forwarder(lease_number);
    is_unheard = forwarder != nullptr && forwarder->unheard.contains(made.export_index) &&
                 impl.exports.record(made.export_index).generation == made.generation;
    if (is_unheard) forwarder->unheard.erase(made.export_index);
    hold.leave_unpins_to_the_next();
  }
  if (is_unheard) LIMBO_FAIL_POINT("forward.after_heard");
}

void Producer::hears_no_more(std::uint32_t lease_number) {
  Impl& impl = *impl_;
  Impl::Hold hold(impl);
  if (Forwarder* forwarder = impl.find_forwarder(lease_number)) impl.withdraw_unheard(*forwarder);
}

void Producer::Impl::withdraw_unheard(Forwarder& forwarder) {
  if (forwarder.unheard.empty() || protocol::makes(protocol::Mistake::kUnheardAnswerKept)) return;
  for (const std::uint32_t index : forwarder.unheard) {
    (void)exports.drain(index, exports.record(index).generation, protocol::EndReason::kWithdrawn);
  }
  forwarder.unheard.clear();
  run_pass(protocol::Look::kChanged);
}

// ---- the forwarders' timelines ----------------------------------------------------------------

ForwarderFiles Producer::forwarder_files(std::uint32_t lease_number) {
  Impl& impl = *impl_;
  ForwarderFiles files;
  bool complete = true;
  {
    Impl::Hold hold(impl);
    const Forwarder* forwarder = impl.find_forwarder(lease_number);
    if (forwarder != nullptr && forwarder->named > 0) {
      files = {forwarder->timelines, duplicate(forwarder->signs->pidfd.get()),
               duplicate(forwarder->signs->life_line.get()), forwarder->signs->life_line_flags};
      complete = files.pidfd.valid() && files.life_line.valid();
    }
    hold.leave_unpins_to_the_next();
  }
  if (files.timelines == nullptr) {
    throw Error(ErrorCode::kGone, "Nothing that lease " + std::to_string(lease_number) +
                                      " has sent on is open any more.");
  }
  if (!complete) {
    throw Error(ErrorCode::kNoChannel, "Its owner has no file descriptors left.");
  }
  return files;
}

bool Producer::complete_waits(std::uint32_t lease_number) {
  Impl& impl = *impl_;
  std::shared_ptr<LeaseTimelines> timelines;
  {
    Impl::Hold hold(impl);
    if (const Forwarder* forwarder = impl.find_forwarder(lease_number)) {
      timelines = forwarder->timelines;
    }
    hold.leave_unpins_to_the_next();
  }
  if (timelines == nullptr) return false;
  timelines->complete();
  return true;
}

void Producer::wait_own(StreamRef stream, const TimelinePoint& point) {
  impl_->timelines.wait(stream, point);
}

void Producer::wait_own(StreamRef stream, const OwnOpen& own) {
  for (const TimelinePoint& point : own.points) {
    if (point.owner == 0) {
      wait_own(stream, point);
    } else {
      own.forwarder->wait(stream, point.index, point.number);
    }
  }
}

std::vector<ForwardersNumber> Producer::Impl::numbers_behind(std::uint32_t index) {
  const ExportRecord& record = exports.record(index);
  std::vector<ForwardersNumber> behind;
  const auto add = [&](const TimelinePoint& point, const Forwarder& forwarder) {
    behind.push_back({point, forwarder.timelines, forwarder.signs});
  };
  for (const TimelinePoint& point : record.points) {
    if (point.owner != 0 && point.number != 0) add(point, *record.forwarder);
  }
  exports.upstream().for_each(record.upstream, add);
  return behind;
}

// A forwarder that is not known any more is quiet, and all that will come of it has.
void Producer::Impl::send_on_own(std::uint32_t index, const OwnOpen& own) {
  Hold hold(*this);
  protocol::UpstreamWord& upstream = exports.record(index).upstream;
  if (own.upstream_lost) exports.upstream().lose(upstream);
  Shortage shortage = Shortage::kNone;
  for (const ForwardersNumber& number : own.behind) {
    const TimelinePoint& point = number.point;
    if (Forwarder* forwarder = find_forwarder(point.owner - 1)) {
      if (forwarder->named == 0) forwarder->signs = number.signs;
      if (shortage == Shortage::kNone)
        shortage = exports.upstream().add(upstream, point, *forwarder);
      if (forwarder->named == 0) forwarder->signs.reset();
    } else if (number.timelines->ended_before(point.index, point.number)) {
      exports.upstream().lose(upstream);
    }
  }
  if (shortage != Shortage::kNone) throw_no_room(shortage, capacities);
}

bool Producer::has_forwarders_to_drop() {
  Impl& impl = *impl_;
  Impl::Hold hold(impl);
  return std::any_of(impl.forwarders.begin(), impl.forwarders.end(),
                     [](const Forwarder& forwarder) { return can_drop(forwarder); });
}

void Producer::drop_forwarders() {
  Impl& impl = *impl_;
  std::list<Forwarder> dropped;
  {
    Impl::Hold hold(impl);
    for (auto entry = impl.forwarders.begin(); entry != impl.forwarders.end();) {
      const auto current = entry++;
      if (can_drop(*current) && current->timelines->finish()) {
        dropped.splice(dropped.end(), impl.forwarders, current);
      }
    }
  }
  dropped.remove_if([](const Forwarder& each) { return each.timelines->settle(); });
  if (dropped.empty()) return;
  Impl::Hold hold(impl);
  impl.forwarders.splice(impl.forwarders.end(), dropped);
}

}  // namespace limbo
