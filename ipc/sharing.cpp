#include "ipc/sharing_service.h"

#include <algorithm>
#include <thread>
#include <utility>

#include "allocator/capture_gate.h"
#include "allocator/error.h"
#include "ipc/descriptor.h"
#include "ipc/fail_points.h"
#include "ipc/fork_guard.h"
#include "ipc/life_line.h"
#include "ipc/numbers_behind.h"
#include "ipc/send_on.h"
#include "ipc/sharing_parts.h"

namespace limbo {
namespace {

using Clock = ServiceThread::Clock;

constexpr std::chrono::milliseconds kDrainStep{1};
// For a connection that takes no more just now.
constexpr std::chrono::milliseconds kTakeBackAgain{1};

// Whether memory that cannot be sent on by one message may be sent on by another that it came by.
bool is_about_one_message(ErrorCode code) {
  return code == ErrorCode::kGone || code == ErrorCode::kWithdrawn || code == ErrorCode::kExpired ||
         code == ErrorCode::kNotAvailableYet || code == ErrorCode::kNotLendable;
}

}  // namespace

SharingService::SharingService(DeviceSource device, AllocatorSource allocator)
    : device_source_(device), allocator_source_(allocator) {}

SharingService::~SharingService() = default;

SharingService::Engine& SharingService::engine() {
  if (Engine* made = engine_.load(std::memory_order_acquire)) return *made;
  const std::lock_guard lock(making_);
  if (engine_.load(std::memory_order_relaxed) == nullptr) {
    owned_incarnation_ = random_incarnation();
    Device& device = device_source_();
    if (const int line = life_line::near_end(); line >= 0) device.hold_while_work_runs(line);
    owned_engine_ = std::make_unique<Engine>(device, owned_incarnation_);
    if (on_start_ != nullptr) on_start_();
    engine_.store(owned_engine_.get(), std::memory_order_release);
  }
  return *owned_engine_;
}

SharingService::Lending& SharingService::lending() {
  Engine& with = engine();
  if (Lending* made = lending_.load(std::memory_order_acquire)) return *made;
  Allocator& allocator = allocator_source_();
  const std::lock_guard lock(making_);
  if (lending_.load(std::memory_order_relaxed) == nullptr) {
    FixedOptions fixed = fix_ledger_options();
    owned_lending_ = std::make_unique<Lending>(*this, with, allocator, owned_incarnation_);
    fixed.stay();
    lending_.store(owned_lending_.get(), std::memory_order_release);
  }
  return *owned_lending_;
}

Bytes SharingService::share(const void* data, std::size_t size_bytes, const ShareOptions& options,
                            ByteSpan extra) {
  fork_guard::begin_use();
  Descriptor descriptor;
  descriptor.extra.assign(extra.begin(), extra.end());
  check_extra(descriptor.extra.size());
  if (!share_held(data, size_bytes, options, descriptor)) {
    share_own(data, size_bytes, options, descriptor);
  }
  try {
    return encode_descriptor(descriptor);
  } catch (...) {
    try {
      take_back(descriptor);
    } catch (const Error&) {
      // It ends by its time limit.
    }
    throw;
  }
}

// By any of the messages that the memory came by: one may have been taken back, be released by
// another thread just now, or have come on a stream that is being captured. False: it came by none.
bool SharingService::share_held(const void* data, std::size_t size_bytes,
                                const ShareOptions& options, Descriptor& descriptor) {
  Engine& with = engine();
  std::optional<Error> over;  // why none will do; that one is being released says the least
  for (const Holding& held : with.links.holdings().find_all(data, size_bytes)) {
    try {
      send_on(with.device, held, data, size_bytes, options, descriptor);
      with.releaser.nudge();  // somebody may wait for its numbers from here on
      return true;
    } catch (const Error& failure) {
      if (failure.code() == ErrorCode::kDeviceError) (void)with.look_for_a_lost_context();
      if (!is_about_one_message(failure.code())) throw;
      if (!over || over->code() == ErrorCode::kGone) over = failure;
    }
  }
  if (over) throw *over;
  return false;
}

void SharingService::share_own(const void* data, std::size_t size_bytes,
                               const ShareOptions& options, Descriptor& descriptor) {
  Lending& lend = lending();
  descriptor.producer = owned_incarnation_;
  descriptor.boot = boot_id();
  descriptor.directory = lend.channel.directory();
  descriptor.socket_name = lend.channel.socket_name();
  // What came back here is pinned for as long as it is held, whatever its owner has freed; it stays
  // held while it is found.
  std::optional<Holding> held;
  lend.own_opens.holdings().find(data, size_bytes, [&](const Holding& found) {
    held = found;  // which may fail: nothing is pinned yet
    lend.producer.pin_own(found.own);
  });
  try {
    descriptor.ticket = held ? share_received(lend, *held, data, size_bytes, options)
                             : lend.producer.share(data, size_bytes, options);
  } catch (const Error& failure) {
    if (failure.code() == ErrorCode::kDeviceError) lend.look_for_a_lost_context();
    throw;
  }
  lend.engine.worker.nudge();
}

// Of a block that is pinned for it, behind whatever messages it came by.
ExportTicket SharingService::share_received(Lending& lend, Holding& held, const void* data,
                                            std::size_t size_bytes, const ShareOptions& options) {
  AlsoBehind also;
  try {
    also = held.behind->also();
    if (also.any) {
      held.own.behind.clear();
      held.own.upstream_lost = also.lost;
      for (const NumberBehind& number : also.numbers) {
        held.own.behind.push_back({number.point, number.foreign, number.signs});
      }
    }
  } catch (...) {
    lend.own_opens.give_up(held.own);
    throw;
  }
  return lend.producer.share_received(held.own, data, size_bytes, options, held.received_on,
                                      also.streams);
}

void SharingService::take_back(const Descriptor& descriptor) {
  const ExportTicket& ticket = descriptor.ticket;
  if (descriptor.producer == owned_incarnation_) {
    if (Lending* lend = lending_.load(std::memory_order_acquire)) {
      lend->producer.withdraw(ticket.export_index, ticket.generation);
    }
    return;
  }
  const Clock::time_point until = Clock::now() + kAnswerDeadline;
  for (bool reachable = true; reachable && Clock::now() < until;) {
    reachable = false;
    for (const auto& link : engine().links.all()) {
      if (link->producer() != descriptor.producer) continue;
      if (link->producer_has_ended()) return;  // and the message with it
      if (!link->usable()) continue;           // its connection is closed; there may be a newer one
      if (link->take_back(ticket.export_index, ticket.generation)) return;
      reachable = true;
    }
    if (reachable) std::this_thread::sleep_for(kTakeBackAgain);
  }
  throw Error(
      ErrorCode::kNoChannel,
      "The owner of the memory cannot be told that a message which this process has sent on "
      "is taken back: the connection to it is closed, or takes nothing more.",
      "Receive anything from it, which connects anew, and withdraw again.");
}

Received SharingService::receive(ByteSpan bytes, const ReceiveOptions& options) {
  fork_guard::begin_use();
  Descriptor descriptor = decode_descriptor(bytes);
  if (options.check_extra) {
    try {
      options.check_extra(descriptor.extra);
    } catch (...) {
      decline(descriptor);
      throw;
    }
  }
  Engine& with = engine();
  Received received;
  if (descriptor.producer == owned_incarnation_) {
    Lending& lend = lending();
    received.block = open_own_block(descriptor, options, with.device, lend.producer, lend.own_opens,
                                    with.living, with.counts);
  } else {
    received.block = with.receiver.receive(descriptor, options);
  }
  received.extra = std::move(descriptor.extra);
  return received;
}

// Its sender would wait for this process until its time is over.
void SharingService::decline(const Descriptor& descriptor) noexcept {
  try {
    Engine& with = engine();
    if (descriptor.producer != owned_incarnation_) {
      with.receiver.decline(descriptor);
    } else if (Lending* lend = lending_.load(std::memory_order_acquire)) {
      lend->producer.decline_own(descriptor.ticket.export_index, descriptor.ticket.generation);
    }
  } catch (const std::exception&) {
    // No device here, or no way to the sender: then it does.
  }
}

Bytes SharingService::peek_extra(ByteSpan descriptor) {
  return decode_descriptor(descriptor).extra;
}

void SharingService::withdraw(ByteSpan bytes) {
  fork_guard::begin_use();
  const Descriptor descriptor = decode_descriptor(bytes);
  if (!is_of_this_process(descriptor)) {
    throw Error(ErrorCode::kBadArgument, "This message was sent by another process.",
                "Withdraw it where it was sent.");
  }
  take_back(descriptor);
}

// Made here: an export of this process's own, or one that was forwarded for it.
bool SharingService::is_of_this_process(const Descriptor& descriptor) {
  Engine* with = engine_.load(std::memory_order_acquire);  // before that, it has no incarnation
  if (with == nullptr) return false;
  const std::uint32_t forwarder = descriptor.ticket.points[0].owner;
  if (descriptor.producer == owned_incarnation_) {
    return forwarder == 0 && lending_.load(std::memory_order_acquire) != nullptr;
  }
  return forwarder != 0 && with->links.has_sent_on(descriptor.producer, forwarder - 1);
}

bool SharingService::collect() {
  fork_guard::begin_use();
  Lending* lend = lending_.load(std::memory_order_acquire);
  return lend != nullptr && lend->producer.collect();
}

Reaped SharingService::reap(bool force) {
  fork_guard::begin_use();
  Lending* lend = lending_.load(std::memory_order_acquire);
  if (lend == nullptr) return {};
  const Reaped before = lend->reaped();
  lend->channel.reap(force);
  const Reaped after = lend->reaped();
  return {after.leases - before.leases, after.claims - before.claims};
}

std::vector<Holder> SharingService::holders() {
  fork_guard::begin_use();
  Lending* lend = lending_.load(std::memory_order_acquire);
  return lend != nullptr ? lend->producer.holders() : std::vector<Holder>{};
}

SharingStats SharingService::stats() {
  fork_guard::begin_use();
  SharingStats stats;
  if (Lending* lend = lending_.load(std::memory_order_acquire)) lend->producer.add_stats(stats);
  Engine* with = engine_.load(std::memory_order_acquire);
  if (with == nullptr) return stats;
  with->releases.poll();
  stats.receives = with->counts.receives.load();
  stats.releases = with->counts.releases.load();
  stats.double_releases = with->counts.double_releases.load();
  stats.releases_pending = with->releases.pending();
  for (const auto& link : with->links.all()) {
    const ImportCounts counts = link->imports().counts();
    stats.forwarders_met += link->forwarders_met();
    stats.pieces_mapped += counts.mapped;
    stats.opens += counts.opens;
    stats.closes += counts.closes;
  }
  return stats;
}

bool SharingService::keep_for_graph(StreamRef capturing) {
  fork_guard::begin_use();
  Engine* with = engine_.load(std::memory_order_acquire);
  if (with == nullptr) return false;  // nothing was received
  const auto end = with->releases.end_of_graph(capturing);
  if (end == nullptr) return false;
  capture_gate::begun(capturing);
  with->living.keep_all_until(capturing.device, end);
  return true;
}

bool SharingService::drain(std::chrono::milliseconds at_most) {
  fork_guard::begin_use();
  Engine* with = engine_.load(std::memory_order_acquire);
  Lending* lend = lending_.load(std::memory_order_acquire);
  if (with == nullptr) return true;
  const auto drained = [&] {
    if (lend != nullptr) (void)lend->producer.collect();
    if (lend != nullptr && !lend->producer.drained()) return false;
    // What was sent on is opened without this process; its work on it goes with it.
    const auto links = with->links.all();
    return std::all_of(links.begin(), links.end(), [](const auto& link) {
      return link->orphaned() || link->own_numbers_landed();
    });
  };
  const Clock::time_point until = Clock::now() + at_most;
  while (true) {
    if (drained()) return true;
    if (Clock::now() >= until) return false;
    std::this_thread::sleep_for(kDrainStep);
  }
}

Incarnation SharingService::incarnation() {
  fork_guard::begin_use();
  (void)engine();
  return owned_incarnation_;
}

Publications* SharingService::publications(bool make) {
  Lending* lend = make ? &lending() : lending_.load(std::memory_order_acquire);
  return lend != nullptr ? &lend->publications : nullptr;
}

void SharingService::end(std::chrono::milliseconds drain_at_most) noexcept {
  try {
    if (Publications* names = publications(false)) names->end();
    LIMBO_FAIL_POINT("exit.before_drain");
    (void)drain(drain_at_most);
    LIMBO_FAIL_POINT("exit.after_drain");
    if (Lending* lend = lending_.load(std::memory_order_acquire)) lend->channel.remove_socket();
  } catch (const std::exception&) {
    // The process ends in any case.
  }
  if (Engine* with = engine_.load(std::memory_order_acquire)) {
    with->releases.poll();
    with->ended.store(true);
    with->links.leave();
    with->releases.stop();
  }
}

void SharingService::check_invariants() {
  fork_guard::begin_use();
  if (Lending* lend = lending_.load(std::memory_order_acquire)) lend->producer.check_invariants();
}

void SharingService::check_extra(std::size_t size_bytes) {
  if (size_bytes <= kMaxExtraBytes) return;
  throw Error(ErrorCode::kBadArgument,
              "The extra part has " + std::to_string(size_bytes) + " bytes.",
              "At most " + std::to_string(kMaxExtraBytes) + " travel with a descriptor.");
}

}  // namespace limbo
