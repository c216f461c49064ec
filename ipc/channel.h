// The producer's end of the channel: a listening socket in the runtime directory, and one
// connection per consumer.
//
// Every process that lends has one, named after its incarnation. Everything here happens on the
// reaper thread; what the leases' keeper has to do that may unpin memory goes to the worker, in
// order. Whatever bytes and descriptors a peer sends, the answer is a message or a closed
// connection; the listener goes on.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

#include "ipc/producer.h"
#include "ipc/runtime_directory.h"
#include "ipc/service_thread.h"

namespace limbo {

class Answerer;  // questions.h

inline constexpr std::chrono::milliseconds kHandshakeDeadline{2000};

// What one process may have of a channel at one time, whatever it does: a program that goes wrong
// must not use up the descriptors and the memory of the one that lends to it.
struct ChannelBounds {
  // Leases of a process that lives. It needs one, and one more for each connection that it has lost.
  std::uint32_t leases = 16;
  // Its connections that have not said hello: questions, and handshakes under way.
  std::uint32_t strangers = 128;
  // Messages of one connection that wait for the worker. No more of it are read meanwhile, so that
  // whoever talks faster than they are dealt with waits itself, and nobody else.
  std::uint32_t undone = 64;
  // Messages made for one connection, which has acquired them, of which it has not heard yet.
  std::uint32_t unheard = 64;
};

// What the channel asks of whoever keeps the leases (Producer, by way of sharing.cpp).
class LeaseKeeper {
 public:
  virtual ~LeaseKeeper() = default;
  // On the reaper; makes no device call. May throw Error: the consumer is refused with its text.
  [[nodiscard]] virtual LeaseGrant add_lease(const LeasePeer& peer) = 0;
  // The same, for what a consumer asks that sends on or opens what was sent on; the text goes to it.
  [[nodiscard]] virtual protocol::ClaimTarget forward(std::uint32_t lease,
                                                      const ForwardRequest& request, int pidfd,
                                                      int life_line,
                                                      std::uint32_t life_line_flags) = 0;
  [[nodiscard]] virtual ForwarderFiles forwarder_files(std::uint32_t lease) = 0;
  // The same, for a lease whose process has ended and is not quiet, swept or not: lets the waits on
  // its timelines pass. False when nobody waits on them.
  virtual bool complete_waits(std::uint32_t lease) = 0;
  // The same: of what was forwarded for it. A consumer that sends on in a loop does not wait for the
  // worker.
  virtual void heard(std::uint32_t lease, const protocol::ClaimTarget& made) = 0;
  // On the worker.
  virtual void lease_gone(std::uint32_t lease, const std::string& why) = 0;
  virtual void lease_quiet(std::uint32_t lease) = 0;
  // By reap(force): it is swept, and its waits are completed until lease_quiet comes as well.
  virtual void lease_forced(std::uint32_t lease) = 0;
  // That it hears of no more, behind everything of which it has.
  virtual void hears_no_more(std::uint32_t lease) = 0;
  virtual void decline(std::uint32_t lease, std::uint32_t export_index,
                       std::uint64_t generation) = 0;
  virtual void take_back(std::uint32_t lease, std::uint32_t export_index,
                         std::uint64_t generation) = 0;
  virtual void row_half_full(std::uint32_t lease) = 0;
  // The consumer says that nothing of its lease is left. True when that is so: the lease is over.
  [[nodiscard]] virtual bool lease_left(std::uint32_t lease) = 0;
  virtual void context_lost(std::uint32_t lease) = 0;
};

class Channel {
 public:
  // Listens from here on; removes the sockets of dead producers from the directory. Throws
  // kNoChannel. `keeper`, `answerer` and the threads outlive it. No `answerer`: questions are refused.
  Channel(ServiceThread& reaper, ServiceThread& worker, LeaseKeeper& keeper,
          const Incarnation& incarnation, Answerer* answerer = nullptr,
          const ChannelBounds& bounds = {});
  // Closes everything and removes the socket. Not to be called on the reaper.
  ~Channel();
  Channel(const Channel&) = delete;
  Channel& operator=(const Channel&) = delete;

  [[nodiscard]] const std::string& directory() const noexcept;
  [[nodiscard]] const std::string& socket_name() const noexcept;

  // Looks at every consumer now, and ends the leases of those that are quiet; returns when that is
  // done. `force`: also of those that have ended and are not known to be quiet. Not to be called on
  // the reaper or the worker.
  void reap(bool force);

  // Removes the socket's file; called at exit. Connections go on.
  void remove_socket() noexcept;

 private:
  struct Impl;
  std::shared_ptr<Impl> impl_;
};

// "<incarnation>.sock"
[[nodiscard]] std::string channel_socket_name(const Incarnation& incarnation);

}  // namespace limbo
