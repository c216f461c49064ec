// What the service is made of: the threads and the consumer's side of a process, and the producer's
// side, which joins the channel to the producer. For sharing.cpp alone.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <exception>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "allocator/error.h"
#include "ipc/channel.h"
#include "ipc/descriptor.h"
#include "ipc/ledger_options.h"
#include "ipc/links.h"
#include "ipc/own_open.h"
#include "ipc/publications.h"
#include "ipc/questions.h"
#include "ipc/receive.h"
#include "ipc/release_queue.h"
#include "ipc/sharing_service.h"
#include "ipc/unmapper.h"

namespace limbo {

// What every process has that shares or receives: the background threads and the consumer's side.
struct SharingService::Engine {
  using Clock = ServiceThread::Clock;

  Engine(Device& its_device, const Incarnation& own)
      : device(its_device),
        links(device, own, reaper, unmapper_thread),
        releases(device, releaser, unmapper_thread),
        receiver(device, links, releases, unmapper_thread, living, counts),
        unmapper(device, links, releases) {
    releaser.post([this] {
      add_periodic(releaser, [this](Clock::time_point now) { return releases.run(now); });
      add_periodic(releaser, [this](Clock::time_point now) { return look_at_sent_on(now); });
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

  // A context that is lost takes the whole process's GPU work with it: whoever waits for what was
  // sent on is let pass. True when one is lost.
  bool look_for_a_lost_context() {
    bool lost = false;
    for (int index = 0; index < device.device_count(); ++index) {
      lost |= releases.is_lost(index, true);
    }
    if (lost) links.tell_context_lost();
    return lost;
  }

  // While others may be waiting for this process's work on what it has sent on, nothing else need
  // call the device here: a process that holds on releases nothing.
  std::optional<Clock::time_point> look_at_sent_on(Clock::time_point now) {
    if (links.own_numbers_landed()) return std::nullopt;
    if (now >= next_look_at_sent_on) {
      next_look_at_sent_on = now + kLookAtSentOn;
      (void)look_for_a_lost_context();
    }
    return next_look_at_sent_on;
  }

  static constexpr std::chrono::milliseconds kLookAtSentOn{50};

  Device& device;
  std::atomic<bool> ended{false};
  Clock::time_point next_look_at_sent_on{};  // of the releaser alone
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
  using Clock = ServiceThread::Clock;

  // How often the producer looks while anything is lent and nothing asks it to (the free of a lent
  // block tells nobody): more slowly while nothing comes back.
  static constexpr std::chrono::milliseconds kCollectSoon{10};
  static constexpr std::chrono::milliseconds kCollectLater{50};
  // How soon it is tried again to forget forwarders: a device may not be there to be waited for.
  static constexpr std::chrono::milliseconds kDropAgain{100};

  Lending(SharingService& service, Engine& its_engine, Allocator& allocator, const Incarnation& own)
      : engine(its_engine),
        producer(engine.device, allocator, own, capacities_from_options()),
        own_opens(engine.device, allocator, engine.releases, engine.worker, engine.unmapper_thread),
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
    engine.unmapper_thread.post([this] {
      engine.add_periodic(engine.unmapper_thread,
                          [this](Clock::time_point now) { return own_opens.run_when_idle(now); });
    });
  }

  std::optional<Clock::time_point> look(Clock::time_point now) {
    producer.run_time_limits(now);
    std::optional<Clock::time_point> deadline = producer.next_deadline();
    if (producer.has_forwarders_to_drop()) {
      deadline = std::min(deadline.value_or(Clock::time_point::max()), now + kDropAgain);
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
      // Counted from its end: a look that took long leaves the collect lock to those who wait for it.
      next_collect = Clock::now() + interval;
    }
    return deadline ? std::min(*deadline, next_collect) : next_collect;
  }

  // Consumers go on talking while the process ends. From its end on nothing is taken back any more, since
  // the last unpin of a block asks the device: what is left goes with the process. What the reaper
  // answers calls no device and undoes no pin; others may wait for it.
  [[nodiscard]] bool has_ended() const noexcept { return engine.ended.load(); }

  LeaseGrant add_lease(const LeasePeer& peer) override {
    const CollectsSoon behind{*this};
    return producer.add_lease(peer);
  }
  // Behind everything that is done on the reaper.
  struct CollectsSoon {
    ~CollectsSoon() { lending.collect_soon(); }
    Lending& lending;
  };
  // The pins that fell due meanwhile, and passes that others have asked for. Once, however much that
  // was; where there is no memory to ask for it, the next collect sees to them.
  void collect_soon() noexcept {
    if (collects_soon.exchange(true)) return;
    try {
      engine.worker.post([this] {
        collects_soon.store(false);
        if (!has_ended()) (void)producer.collect();
      });
    } catch (const std::exception&) {
      collects_soon.store(false);
    }
  }
  void lease_gone(std::uint32_t lease, const std::string& why) override {
    if (!has_ended()) producer.lease_gone(lease, why);
  }
  void lease_quiet(std::uint32_t lease) override {
    if (!has_ended()) producer.lease_quiet(lease);
  }
  void decline(std::uint32_t lease, std::uint32_t index, std::uint64_t generation) override {
    if (!has_ended()) producer.decline(lease, index, generation);
  }
  void take_back(std::uint32_t lease, std::uint32_t index, std::uint64_t generation) override {
    if (!has_ended()) producer.take_back(lease, index, generation);
  }
  void row_half_full(std::uint32_t lease) override {
    if (!has_ended()) producer.row_half_full(lease);
  }
  protocol::ClaimTarget forward(std::uint32_t lease, const ForwardRequest& request, int pidfd,
                                int life_line, std::uint32_t life_line_flags) override {
    if (has_ended()) {
      throw Error(ErrorCode::kProducerExited, "The process that the memory is of is ending.",
                  "Send a clone() of it.");
    }
    const CollectsSoon behind{*this};
    return producer.forward(lease, request, pidfd, life_line, life_line_flags);
  }
  ForwarderFiles forwarder_files(std::uint32_t lease) override {
    const CollectsSoon behind{*this};
    return producer.forwarder_files(lease);
  }
  bool complete_waits(std::uint32_t lease) override {
    const CollectsSoon behind{*this};
    return producer.complete_waits(lease);
  }
  void heard(std::uint32_t lease, const protocol::ClaimTarget& made) override {
    const CollectsSoon behind{*this};
    producer.heard(lease, made);
  }
  void hears_no_more(std::uint32_t lease) override {
    if (!has_ended()) producer.hears_no_more(lease);
  }
  void lease_forced(std::uint32_t lease) override {
    if (!has_ended()) producer.lease_forced(lease);
  }
  bool lease_left(std::uint32_t lease) override {
    return !has_ended() && producer.lease_left(lease);
  }
  void context_lost(std::uint32_t lease) override {
    if (!has_ended()) producer.lease_lost_context(lease);
  }

  // Told again and again: a late write may have set a timeline back.
  void look_for_a_lost_context() {
    // A driver that has ended with its process says the same.
    if (engine.look_for_a_lost_context() && !has_ended()) producer.mark_context_lost();
  }

  Acquired acquire_for_other(const std::string& name) override {
    if (has_ended()) {
      throw Error(ErrorCode::kProducerExited, "The process that publishes this is ending.");
    }
    Bytes message = publications.acquire(name);
    const ExportTicket ticket = decode_descriptor(message).ticket;
    return {std::move(message), {ticket.export_index, ticket.generation}};
  }
  void not_delivered(const protocol::ClaimTarget& made) override {
    if (!has_ended()) producer.withdraw(made.export_index, made.generation);
  }
  std::vector<std::string> published() override { return publications.list(); }
  std::vector<Holder> lent_to() override {
    return has_ended() ? std::vector<Holder>{} : producer.holders();
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
  std::atomic<bool> collects_soon{false};
  Channel channel;
};

}  // namespace limbo
