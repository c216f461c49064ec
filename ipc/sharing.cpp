#include "ipc/sharing_service.h"

#include <algorithm>
#include <thread>
#include <utility>

#include "allocator/error.h"
#include "allocator/options.h"
#include "ipc/channel.h"
#include "ipc/descriptor.h"
#include "ipc/fail_points.h"
#include "ipc/fork_guard.h"
#include "ipc/ledger_options.h"
#include "ipc/life_line.h"
#include "ipc/links.h"
#include "ipc/own_open.h"
#include "ipc/publications.h"
#include "ipc/questions.h"
#include "ipc/receive.h"
#include "ipc/release_queue.h"
#include "ipc/send_on.h"
#include "ipc/unmapper.h"

namespace limbo {
namespace {

using Clock = ServiceThread::Clock;

// How often the producer looks while anything is lent and nothing asks it to (the free of a lent block
// tells nobody): more slowly while nothing comes back.
constexpr std::chrono::milliseconds kCollectSoon{10};
constexpr std::chrono::milliseconds kCollectLater{50};
constexpr std::chrono::milliseconds kDrainStep{1};

// Whether memory that cannot be sent on by one message may be sent on by another that it came by.
bool is_about_one_message(ErrorCode code) {
  return code == ErrorCode::kGone || code == ErrorCode::kWithdrawn || code == ErrorCode::kExpired ||
         code == ErrorCode::kNotAvailableYet || code == ErrorCode::kNotLendable;
}

}  // namespace

// What every process has that shares or receives: the background threads and the consumer's side.
struct SharingService::Engine {
  Engine(Device& its_device, const Incarnation& own)
      : device(its_device),
        links(device, own, reaper, unmapper_thread),
        releases(device, releaser, unmapper_thread),
        receiver(device, links, releases, unmapper_thread, living, counts),
        unmapper(device, links, releases) {
    releaser.post([this] {
      add_periodic(releaser, [this](Clock::time_point now) { return releases.run(now); });
    });
    unmapper_thread.post([this] {
      add_periodic(unmapper_thread, [this](Clock::time_point now) { return unmapper.run(now); });
    });
  }

  // On its thread. Once the process is ending, nothing calls the device any more.
  void add_periodic(ServiceThread& thread, ServiceThread::Periodic periodic) {
    thread.add_periodic([this, run = std::move(periodic)](Clock::time_point now) {
      return ended.load() ? std::nullopt : run(now);
    });
  }

  Device& device;
  std::atomic<bool> ended{false};
  ServiceThread reaper{"limbo-reaper"};
  ServiceThread worker{"limbo-worker"};
  ServiceThread releaser{"limbo-releaser"};
  ServiceThread unmapper_thread{"limbo-unmapper"};
  ReceiveCounts counts;
  LiveBlocks living;
  Links links;
  ReleaseQueue releases;
  Receiver receiver;
  Unmapper unmapper;
};

// What a process has that lends.
struct SharingService::Lending : LeaseKeeper, Answerer {
  Lending(SharingService& service, Engine& its_engine, Allocator& allocator, const Incarnation& own)
      : engine(its_engine),
        producer(engine.device, allocator, own, capacities_from_options()),
        own_opens(engine.device, allocator, engine.releases, engine.worker),
        publications(
            allocator, own,
            [&service](const void* data, std::size_t size_bytes, const ShareOptions& options,
                       ByteSpan extra) { return service.share(data, size_bytes, options, extra); }),
        channel(engine.reaper, engine.worker, *this, own, this) {
    allocator.set_lender(&producer);  // on a miss it is asked to collect
    engine.worker.post([this] {
      engine.add_periodic(engine.worker, [this](Clock::time_point now) { return look(now); });
      engine.add_periodic(engine.worker,
                          [this](Clock::time_point now) { return own_opens.run(now); });
    });
  }

  std::optional<Clock::time_point> look(Clock::time_point now) {
    producer.run_time_limits(now);
    const std::optional<Clock::time_point> deadline = producer.next_deadline();
    if (producer.has_forwarders_to_drop()) {
      engine.unmapper_thread.post([this] {
        if (!engine.ended.load()) producer.drop_forwarders();
      });
    }
    if (!producer.lends_anything()) {
      interval = kCollectSoon;
      return deadline;
    }
    if (now >= next_collect) {
      look_for_a_lost_context();
      interval = producer.collect() ? kCollectSoon : std::min(2 * interval, kCollectLater);
      next_collect = now + interval;
    }
    return deadline ? std::min(*deadline, next_collect) : next_collect;
  }

  LeaseGrant add_lease(const LeasePeer& peer) override {
    const LeaseGrant grant = producer.add_lease(peer);
    collect_soon();
    return grant;
  }
  // After what was done on the reaper: the pins that fell due meanwhile.
  void collect_soon() {
    engine.worker.post([this] {
      if (!engine.ended.load()) (void)producer.collect();
    });
  }
  void lease_gone(std::uint32_t lease, const std::string& why) override {
    producer.lease_gone(lease, why);
  }
  void lease_quiet(std::uint32_t lease) override {
    if (!engine.ended.load()) producer.lease_quiet(lease);
  }
  void decline(std::uint32_t lease, std::uint32_t index, std::uint64_t generation) override {
    producer.decline(lease, index, generation);
  }
  void take_back(std::uint32_t lease, std::uint32_t index, std::uint64_t generation) override {
    producer.take_back(lease, index, generation);
  }
  void row_half_full(std::uint32_t lease) override { producer.row_half_full(lease); }
  protocol::ClaimTarget forward(std::uint32_t lease, const ForwardRequest& request, int pidfd,
                                int life_line, std::uint32_t life_line_flags) override {
    const auto made = producer.forward(lease, request, pidfd, life_line, life_line_flags);
    collect_soon();
    return made;
  }
  ForwarderFiles forwarder_files(std::uint32_t lease) override {
    return producer.forwarder_files(lease);
  }
  bool complete_waits(std::uint32_t lease) override { return producer.complete_waits(lease); }
  bool lease_left(std::uint32_t lease) override {
    return !engine.ended.load() && producer.lease_left(lease);
  }
  void context_lost(std::uint32_t lease) override { producer.lease_lost_context(lease); }

  // A context that is lost takes the whole process's GPU work with it. Told again and again: a late
  // write may have set a timeline back.
  void look_for_a_lost_context() {
    for (int device = 0; device < engine.device.device_count(); ++device) {
      if (engine.device.is_lost(device)) producer.mark_context_lost();
    }
  }

  Bytes acquire_for_other(const std::string& name) override {
    if (engine.ended.load()) {
      throw Error(ErrorCode::kProducerExited, "The process that publishes this is ending.");
    }
    return publications.acquire(name);
  }
  void not_delivered(ByteSpan message) override {
    const ExportTicket ticket = decode_descriptor(message).ticket;
    producer.withdraw(ticket.export_index, ticket.generation);
  }
  std::vector<std::string> published() override { return publications.list(); }
  std::vector<Holder> lent_to() override {
    return engine.ended.load() ? std::vector<Holder>{} : producer.holders();
  }
  Reaped reaped() override {
    SharingStats stats;
    producer.add_stats(stats);
    return {stats.leases_swept, stats.claims_swept};
  }

  Engine& engine;
  Producer producer;
  OwnOpens own_opens;
  Publications publications;
  std::chrono::milliseconds interval = kCollectSoon;  // of the worker alone, as the next
  Clock::time_point next_collect{};
  Channel channel;
};

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
    owned_lending_ = std::make_unique<Lending>(*this, with, allocator, owned_incarnation_);
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
    take_back(descriptor);
    throw;
  }
}

// By any of the messages that the memory came by: one may have been taken back, be released by
// another thread just now, or have come on a stream that is being captured. False: it came by none.
bool SharingService::share_held(const void* data, std::size_t size_bytes,
                                const ShareOptions& options, Descriptor& descriptor) {
  std::optional<Error> over;  // why none will do; that one is being released says the least
  for (const Holding& held : engine().links.holdings().find_all(data, size_bytes)) {
    try {
      send_on(engine().device, held, data, size_bytes, options, descriptor);
      return true;
    } catch (const Error& failure) {
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
    lend.producer.pin_own(found.own);
    held = found;
  });
  try {
    descriptor.ticket =
        held ? lend.producer.share_received(held->own, data, size_bytes, options, held->received_on)
             : lend.producer.share(data, size_bytes, options);
  } catch (const Error& failure) {
    if (failure.code() == ErrorCode::kDeviceError) lend.look_for_a_lost_context();
    throw;
  }
  lend.engine.worker.nudge();
}

void SharingService::take_back(const Descriptor& descriptor) {
  const ExportTicket& ticket = descriptor.ticket;
  if (descriptor.producer == owned_incarnation_) {
    if (Lending* lend = lending_.load(std::memory_order_acquire)) {
      lend->producer.withdraw(ticket.export_index, ticket.generation);
    }
    return;
  }
  for (const auto& link : engine().links.all()) {
    if (link->producer() == descriptor.producer && link->usable()) {
      link->take_back(ticket.export_index, ticket.generation);
    }
  }
}

Received SharingService::receive(ByteSpan bytes, const ReceiveOptions& options) {
  fork_guard::begin_use();
  Descriptor descriptor = decode_descriptor(bytes);
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
  const std::uint32_t forwarder = descriptor.ticket.points[0].owner;
  if (descriptor.producer == owned_incarnation_) {
    return forwarder == 0 && lending_.load(std::memory_order_acquire) != nullptr;
  }
  if (forwarder == 0 || engine_.load(std::memory_order_acquire) == nullptr) return false;
  const auto links = engine().links.all();
  return std::any_of(links.begin(), links.end(), [&](const auto& link) {
    return link->producer() == descriptor.producer && link->lease_number() + 1 == forwarder;
  });
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
  if (end) with->living.keep_all_until(capturing.device, end);
  return end != nullptr;
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
