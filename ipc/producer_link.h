// One consumer's standing with one producer: the connection, the mapped tables, the claim slots and
// the mapped pieces. Made by links.h, shared by the received blocks; it ends when the producer is
// dead (or the connection is lost) and nothing of it is held or landing any more.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>

#include "allocator/device/device.h"
#include "ipc/connection.h"
#include "ipc/consumer_row.h"
#include "ipc/handshake.h"
#include "ipc/import_cache.h"
#include "ipc/lease_watch.h"
#include "ipc/shared_memory.h"

namespace limbo {

class ProducerLink {
 public:
  // Maps the tables and registers them with the device. Throws kNoChannel or kDeviceError; then the
  // connection declines the message that it was made for and gives its lease back.
  ProducerLink(Device& device, const Incarnation& producer, Handshake&& hands);
  // Unmaps the tables; everything has landed and nothing waits on them.
  ~ProducerLink();
  ProducerLink(const ProducerLink&) = delete;
  ProducerLink& operator=(const ProducerLink&) = delete;

  [[nodiscard]] const Incarnation& producer() const noexcept { return producer_; }
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

  // Later work of `stream` waits for what `point` names. Throws kBadDescriptor for a timeline that
  // cannot exist, kNotAvailableYet for a forwarder's.
  void wait(StreamRef stream, const TimelinePoint& point);

  // Messages to the producer; one that cannot be sent is dropped (the producer is dead, or so far
  // behind that it notes everything anyway).
  void decline(std::uint32_t export_index, std::uint64_t generation) noexcept;
  void ring_half_full() noexcept;
  // This process's GPU context is lost; once.
  void tell_context_lost() noexcept;

  // The process ends: no new claims are made. Where nothing is held, landing or mapped, the lease is
  // given back.
  void leave() noexcept;

  // ---- the reaper's --------------------------------------------------------------------------

  void watch(ServiceThread& reaper);
  void unwatch(ServiceThread& reaper);
  // Completes the waits of a dead producer; when to be called again, if at all. No device call.
  [[nodiscard]] std::optional<DeathSigns::Clock::time_point> run(DeathSigns::Clock::time_point now);

 private:
  void read_connection(ServiceThread& reaper);
  void complete_waits() noexcept;

  Device& device_;
  const Incarnation producer_;
  const Capacities capacities_;
  Connection socket_;  // before the tables: bye is said when they are gone
  OwnedFd pidfd_;      // a copy; the watch has its own
  const SharedMemory ledger_memory_;
  const SharedMemory timelines_memory_;
  const SharedMemory row_memory_;
  const LedgerView ledger_;
  ConsumerRow row_;
  ImportCache imports_;
  std::atomic<bool> gone_{false};
  std::atomic<bool> lost_{false};  // the connection is closed
  std::atomic<bool> told_context_lost_{false};

  // Of the reaper alone:
  OwnedFd watched_pidfd_;
  OwnedFd watched_life_line_;
  std::uint32_t life_line_flags_ = 0;
  std::unique_ptr<PeerWatch> watch_;
  bool completed_ = false;  // the producer is quiet and its waits are completed for good
};

}  // namespace limbo
