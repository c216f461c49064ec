// One consumer's standing with one producer: the connection, the mapped tables, the claim slots and
// the mapped pieces. Made by links.h, shared by the received blocks; it ends when the producer is
// dead (or the connection is lost) and nothing of it is held or landing any more.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>

#include "allocator/device/device.h"
#include "ipc/connection.h"
#include "ipc/consumer_row.h"
#include "ipc/first_success.h"
#include "ipc/foreign_timelines.h"
#include "ipc/handshake.h"
#include "ipc/import_cache.h"
#include "ipc/joining_streams.h"
#include "ipc/lease_watch.h"
#include "ipc/owner_requests.h"
#include "ipc/producer.h"
#include "ipc/shared_memory.h"
#include "ipc/timelines.h"

namespace limbo {

class NumbersBehind;

// A number that a message is behind, and the words in which it shows where its owner is another
// consumer that has sent the message on.
struct SenderPoint {
  TimelinePoint point;
  std::shared_ptr<LeaseTimelines> foreign = nullptr;
};

class ProducerLink {
 public:
  // Maps the tables, and calls no device. Throws kNoChannel; then the connection declines the message
  // that it was made for and gives its lease back.
  ProducerLink(Device& device, const ProducerAddress& address, Handshake&& hands);
  // Unmaps the tables; everything has landed and nothing waits on them. On the unmapper, when it has
  // settled: may wait.
  ~ProducerLink();
  ProducerLink(const ProducerLink&) = delete;
  ProducerLink& operator=(const ProducerLink&) = delete;

  [[nodiscard]] const Incarnation& producer() const noexcept { return address_.incarnation; }
  [[nodiscard]] std::uint32_t lease_number() const noexcept { return lease_number_; }
  [[nodiscard]] const ProducerAddress& address() const noexcept { return address_; }
  [[nodiscard]] const LedgerView& ledger() const noexcept { return ledger_; }
  [[nodiscard]] ConsumerRow& row() noexcept { return row_; }
  [[nodiscard]] ImportCache& imports() noexcept { return imports_; }

  // Whether new claims can be made.
  [[nodiscard]] bool usable() const noexcept {
    return !gone_.load(std::memory_order_acquire) && !lost_.load();
  }
  // No work of the producer will come: it has ended, or has lost its GPU context.
  [[nodiscard]] bool orphaned() const noexcept {
    return gone_.load(std::memory_order_acquire) || producer_lost_context();
  }
  [[nodiscard]] bool producer_lost_context() const noexcept {
    return ledger_.header().context_lost.load(std::memory_order_acquire) != 0;
  }
  // Whether the producer has ended, without waiting for the reaper to notice: looks at the pidfd.
  [[nodiscard]] bool producer_has_ended() const noexcept;
  // Waits for that. A dying process's memory goes with its descriptors, before its pidfd tells.
  [[nodiscard]] bool producer_ends_within(std::chrono::milliseconds at_most) const noexcept;

  // Registers the tables, so that streams can wait on them and write them: before anything is received.
  // `device` is the one that it is received on. True: now; false: they were before. Throws
  // kDeviceError; then the next call goes on with the one that was refused.
  [[nodiscard]] bool register_tables(int device);

  // Finds the timelines that `point` names: the producer's, those of a consumer that has forwarded the
  // message, or this process's own. A forwarder that is not known here yet is asked for: that may wait
  // for the producer's answer, at most a second. Throws kGone, kNoChannel, kProducerExited.
  [[nodiscard]] SenderPoint meet(const TimelinePoint& point);
  // Later work of `stream` waits for it. Throws kBadDescriptor for a timeline that cannot exist,
  // kDeviceError.
  void wait(StreamRef stream, const SenderPoint& sent);
  // What has become of a number of this process's own for this producer.
  [[nodiscard]] protocol::Arrival own_arrival(const TimelinePoint& point) const noexcept {
    return own_timelines_.arrival(point);
  }

  // ---- sending on ----------------------------------------------------------------------------

  // The next numbers of this process's own timelines for this producer, behind what the streams have
  // queued, as JoiningStreams has them. Throws kLedgerFull, kDeviceError.
  [[nodiscard]] std::array<TimelinePoint, 2> advance(std::span<const StreamRef> streams);
  // Whether the streams have got to all numbers that were taken.
  [[nodiscard]] bool own_numbers_landed() { return own_timelines_.all_reached(); }
  // A new export of what this process holds by the message of `held`; what its descriptor says.
  // `behind`: of its block. Waits for the owner's answer, at most a second. Throws kGone, kWithdrawn,
  // kExpired, kLedgerFull, kNoChannel, kProducerExited.
  [[nodiscard]] ExportTicket forward(const ForwardRequest& request, const ExportTicket& held,
                                     const NumbersBehind& behind);

  // Whether it ever was; and the messages then made name this lease.
  [[nodiscard]] bool has_sent_on() const noexcept { return has_sent_on_.load(); }

  // Releases of its blocks that are not over. ReleaseQueue counts.
  void release_begun() noexcept { releases_pending_.fetch_add(1); }
  void release_over() noexcept { releases_pending_.fetch_sub(1); }
  [[nodiscard]] std::uint64_t releases_pending() const noexcept { return releases_pending_.load(); }

  // Messages to the producer; one that cannot be sent is dropped (the producer is dead, or so far
  // behind that it notes everything anyway).
  void decline(std::uint32_t export_index, std::uint64_t generation) noexcept;
  void ring_half_full() noexcept;
  // This process's GPU context is lost: lets everybody pass who waits for its work, as often as it is
  // called; the producer is told once.
  void tell_context_lost() noexcept;
  // What is said of this process's life line as things stand now: told where it is more than before.
  void tell_life_line(std::uint32_t flags) noexcept;
  // What was forwarded for this process will not be sent. False: this could not be said.
  bool take_back(std::uint32_t export_index, std::uint64_t generation) noexcept;

  // The process ends: no new claims are made. Where nothing is held, landing or mapped, the lease is
  // given back.
  void leave() noexcept;

  // ---- the reaper's --------------------------------------------------------------------------

  // Watches the producer; completes the waits of a dead one, and of dead forwarders. When to be called
  // again, if at all. No device call.
  [[nodiscard]] std::optional<DeathSigns::Clock::time_point> run(ServiceThread& reaper,
                                                                 DeathSigns::Clock::time_point now);
  void unwatch(ServiceThread& reaper);

  // Of how many forwarders the timelines are here.
  [[nodiscard]] std::size_t forwarders_met() { return foreign_.size(); }

  // ---- the unmapper's ------------------------------------------------------------------------
  // Lets the timelines of dead forwarders go. May wait for kernels.
  void drop_finished() { foreign_.drop_finished(); }
  [[nodiscard]] bool has_finished() { return foreign_.has_finished(); }
  // Nobody has it any more: the device forgets its own timelines, as Timelines::settle has it.
  [[nodiscard]] bool settle() noexcept { return own_timelines_.settle(); }

 private:
  [[nodiscard]] std::optional<DeathSigns::Clock::time_point> watch(
      ServiceThread& reaper, DeathSigns::Clock::time_point now);
  void say_heard(const ExportTicket& made);
  void read_connection(ServiceThread& reaper);
  void take(Packet&& packet);
  [[nodiscard]] bool take_answer(const MessageHeader& header, Packet&& packet);
  void complete_producers_waits() noexcept;
  [[nodiscard]] std::optional<DeathSigns::Clock::time_point> run_for_producer(
      DeathSigns::Clock::time_point now);
  [[nodiscard]] Packet ask(const std::string& what,
                           const std::function<MessageBytes(std::uint64_t)>& message);
  [[nodiscard]] std::shared_ptr<LeaseTimelines> timelines_of(std::uint32_t lease);
  [[nodiscard]] ForeignTimelines ask_for_timelines(std::uint32_t lease);

  Device& device_;
  const ProducerAddress address_;
  const std::uint32_t lease_number_;
  const Capacities capacities_;
  Connection socket_;  // before the tables: bye is said when they are gone
  OwnedFd pidfd_;      // a copy; the watch has its own
  const SharedMemory ledger_memory_;
  SharedMemory timelines_memory_;
  SharedMemory row_memory_;
  FirstSuccess registration_;
  std::size_t registered_ = 0;  // of the two tables that the GPU writes or looks at
  const LedgerView ledger_;
  ConsumerRow row_;
  ImportCache imports_;
  Timelines own_timelines_;
  JoiningStreams joining_;
  OwnerRequests requests_;
  ForeignTimelinesTable foreign_;
  std::atomic<ServiceThread*> reaper_{nullptr};  // once it watches
  std::atomic<bool> gone_{false};
  std::atomic<bool> lost_{false};  // the connection is closed
  std::atomic<bool> told_context_lost_{false};
  std::atomic<std::uint32_t> told_life_line_flags_;
  std::atomic<bool> has_sent_on_{false};
  std::atomic<std::uint64_t> releases_pending_{0};

  // Of the reaper alone:
  OwnedFd watched_pidfd_;
  OwnedFd watched_life_line_;
  std::uint32_t life_line_flags_ = 0;
  std::unique_ptr<PeerWatch> watch_;
  bool connection_watched_ = false;
  bool completed_ = false;  // the producer is quiet and its waits are completed for good
};

}  // namespace limbo
