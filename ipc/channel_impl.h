// The insides of Channel, shared by its sources.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "ipc/channel.h"
#include "ipc/channel_socket.h"
#include "ipc/lease_watch.h"
#include "ipc/messages.h"
#include "ipc/owned_fd.h"
#include "ipc/packet.h"
#include "ipc/questions.h"

namespace limbo {

// How long nobody is accepted where there are no descriptors, or no watch on the listener.
inline constexpr std::chrono::milliseconds kPauseWithoutDescriptors{100};

// One consumer, from accept until it is quiet. Of the reaper alone.
struct ChannelPeer {
  using Clock = std::chrono::steady_clock;

  OwnedFd socket;  // invalid: the connection is closed
  pid_t pid = 0;
  OwnedFd pidfd;  // until hello; then the watch's
  Clock::time_point handshake_until;
  std::optional<std::uint32_t> lease;  // after hello
  std::unique_ptr<PeerWatch> watch;
  bool has_forwarded = false;
  bool forced =
      false;  // its lease was ended by reap(force); what waits for its GPU is still completed
  // Made for it by its questions, and not heard of yet: nobody else knows of these.
  std::vector<protocol::ClaimTarget> unheard;
  bool reported_gone = false;
  std::string reported_why;
  std::optional<Clock::time_point> complete_again;  // a late write may set a timeline back
};

struct Channel::Impl : std::enable_shared_from_this<Channel::Impl> {
  using Clock = ServiceThread::Clock;

  Impl(ServiceThread& reaper_thread, ServiceThread& worker_thread, LeaseKeeper& lease_keeper,
       const Incarnation& own)
      : reaper(reaper_thread),
        worker(worker_thread),
        keeper(lease_keeper),
        incarnation(own),
        directory(RuntimeDirectory::open_own()),
        name(channel_socket_name(own)) {}

  ServiceThread& reaper;
  ServiceThread& worker;
  LeaseKeeper& keeper;
  const Incarnation incarnation;
  const RuntimeDirectory directory;
  const std::string name;

  // Of the reaper alone from the start on.
  OwnedFd listener;
  std::map<std::uint64_t, ChannelPeer> peers;
  std::uint64_t next_peer = 0;
  std::optional<Clock::time_point> paused_until;  // the listener is not watched until then
  bool closed = false;
  std::shared_ptr<Questions> questions;

  // ---- connections and their messages (channel.cpp)
  void start();
  void answer_by(Answerer& answerer);
  void accept_all();
  void accept_one(OwnedFd socket);
  void read(std::uint64_t id);
  void take(std::uint64_t id, ChannelPeer& peer, Packet& packet);
  void take_hello(std::uint64_t id, ChannelPeer& peer, Packet& packet);
  void take_heard(ChannelPeer& peer, const protocol::ClaimTarget& made);
  [[nodiscard]] bool deliver(std::uint64_t id, ByteSpan message,
                             const std::optional<protocol::ClaimTarget>& made);
  [[nodiscard]] bool welcome(const ChannelPeer& peer, const LeaseGrant& grant);

  // ---- their ends (channel_ends.cpp)
  void give_up(std::uint64_t id);
  void hear_out(std::uint64_t id);
  void end_unheard(ChannelPeer& peer);
  void close_socket(ChannelPeer& peer);
  void close_connection(std::uint64_t id);
  void look_at(std::uint64_t id);
  void end_lease(std::uint64_t id);
  void force_end(std::uint64_t id);
  void end_handshake(std::uint64_t id);
  void drop(std::uint64_t id);
  void reap(bool force);
  void shut();
  // The reaper's periodic.
  std::optional<Clock::time_point> run(Clock::time_point now);
  void run_for(std::uint64_t id, Clock::time_point now, std::optional<Clock::time_point>& next);

  static void answer(const ChannelPeer& peer, MessageType type, ErrorCode code,
                     const std::string& text) {
    // A peer that takes no more answers misses this one.
    (void)send_packet(peer.socket.get(), encode(Refused{code, text}, type));
  }
};

}  // namespace limbo
