// The insides of Channel, shared by its sources.
#pragma once

#include <sys/types.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <exception>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "ipc/channel.h"
#include "ipc/channel_bounds.h"
#include "ipc/channel_socket.h"
#include "ipc/lease_watch.h"
#include "ipc/messages.h"
#include "ipc/owned_fd.h"
#include "ipc/packet.h"
#include "ipc/questions.h"

namespace limbo {

// How long nobody is accepted where there are no descriptors, or no watch on the listener.
inline constexpr std::chrono::milliseconds kPauseWithoutDescriptors{100};

// One consumer, from accept until it is quiet. Of the reaper alone. It stays where it was made.
struct ChannelPeer {
  using Clock = std::chrono::steady_clock;

  OwnedFd socket;  // invalid: the connection is closed
  ProcessIdentity process;
  OwnedFd pidfd;  // until hello; then the watch's
  Clock::time_point handshake_until;
  std::shared_ptr<Backlog> backlog;

  // Where the socket is not watched: no room for more, or no memory for what was read last.
  bool paused = false;
  std::optional<Packet> untaken;

  std::optional<std::uint32_t> lease;  // after hello
  std::optional<PeerWatch> watch;      // as long; here, so that no lease is without one
  bool handed_nothing = false;         // the welcome has not gone out: its lease ends
  bool has_forwarded = false;
  bool has_said_bye = false;
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
       const Incarnation& own, const ChannelBounds& its_bounds)
      : reaper(reaper_thread),
        worker(worker_thread),
        keeper(lease_keeper),
        incarnation(own),
        bounds(its_bounds),
        directory(RuntimeDirectory::open_own()),
        name(channel_socket_name(own)) {}

  ServiceThread& reaper;
  ServiceThread& worker;
  LeaseKeeper& keeper;
  const Incarnation incarnation;
  const ChannelBounds bounds;
  const RuntimeDirectory directory;
  const std::string name;

  // Of the reaper alone from the start on.
  OwnedFd listener;
  std::map<std::uint64_t, ChannelPeer> peers;
  std::uint64_t next_peer = 0;
  std::optional<Clock::time_point> paused_until;  // the listener is not watched until then
  bool closed = false;
  std::shared_ptr<Questions> questions;

  // ---- connections (channel.cpp)
  void start();
  void answer_by(Answerer& answerer);
  void accept_some();
  void accept_one(OwnedFd socket);
  void watch_socket(std::uint64_t id, const ChannelPeer& peer);
  void read(std::uint64_t id);
  void pause(ChannelPeer& peer) noexcept;
  [[nodiscard]] bool resume(std::uint64_t id, ChannelPeer& peer) noexcept;
  [[nodiscard]] bool deliver(std::uint64_t id, ByteSpan message,
                             const std::optional<protocol::ClaimTarget>& made) noexcept;
  // How many of a process's peers `counts` is true of.
  template <typename Counts>
  [[nodiscard]] std::uint32_t count_of(const ProcessIdentity& process, Counts&& counts) {
    return static_cast<std::uint32_t>(std::count_if(peers.begin(), peers.end(), [&](auto& entry) {
      return are_one_process(entry.second.process, process) && counts(entry.second);
    }));
  }

  // ---- their messages (channel_messages.cpp). Where one cannot be taken for want of memory it
  // throws, has changed nothing, and may be taken again.
  void take_untaken(std::uint64_t id, ChannelPeer& peer);
  void take(std::uint64_t id, ChannelPeer& peer, Packet& packet);
  void take_hello(std::uint64_t id, ChannelPeer& peer, Packet& packet);
  void greet(std::uint64_t id, ChannelPeer& peer, const Hello& hello, Packet& packet);
  void refuse_beyond_bounds(const ChannelPeer& peer);
  void welcome(ChannelPeer& peer, const LeaseGrant& grant);
  [[nodiscard]] bool take_question(std::uint64_t id, ChannelPeer& peer, MessageType type,
                                   ByteSpan bytes);
  void take_heard(ChannelPeer& peer, const protocol::ClaimTarget& made);
  [[nodiscard]] bool take_of_lease(ChannelPeer& peer, MessageType type, ByteSpan bytes);
  void take_bye(ChannelPeer& peer);
  template <typename Does>
  void post_for(const ChannelPeer& peer, Does does);
  template <typename Does>
  void post_once(const ChannelPeer& peer, Backlog::Once what, Does does);

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

  // A peer that takes no more answers misses this one, and so does one where memory is short.
  static void answer(int socket, MessageType type, ErrorCode code, std::string_view text) noexcept {
    try {
      (void)send_packet(socket, encode(Refused{code, std::string(text)}, type));
    } catch (const std::exception&) {
    }
  }
};

}  // namespace limbo
