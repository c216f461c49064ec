// How a connection ends, and a lease: from the signs of its process's death, by its own word, or
// because there is nobody any more who could be told.
#include <exception>
#include <utility>
#include <vector>

#include "ipc/channel_impl.h"
#include "ipc/fail_points.h"
#include "ipc/fork_guard.h"

namespace limbo {
namespace {

// How often the waits on a forwarder that is gone and not quiet are completed.
constexpr std::chrono::milliseconds kCompleteForwarderAgain{20};
// More than a connection holds: a child of the dead may go on talking.
constexpr int kMostLastMessages = 1024;

}  // namespace

// A lease whose tables were not handed out: there is nothing that its consumer could hold.
void Channel::Impl::give_up(std::uint64_t id) {
  hear_out(id);  // what it declines
  worker.post([this, lease = *peers.at(id).lease] { keeper.lease_quiet(lease); });
  drop(id);
}

// Everything that it has said so far: what it has heard of is not taken back.
void Channel::Impl::hear_out(std::uint64_t id) {
  ChannelPeer& peer = peers.at(id);
  take_untaken(id, peer);
  for (int count = 0; count < kMostLastMessages && peer.socket.valid(); ++count) {
    Packet packet;
    if (receive_packet(peer.socket.get(), packet) != PacketStatus::kPacket) return;
    peer.untaken = std::move(packet);
    take_untaken(id, peer);
  }
}

void Channel::Impl::end_unheard(ChannelPeer& peer) {
  while (!peer.unheard.empty()) {
    questions->not_delivered(peer.unheard.back());
    peer.unheard.pop_back();
  }
}

void Channel::Impl::close_socket(ChannelPeer& peer) {
  end_unheard(peer);
  reaper.unwatch(peer.socket.get());
  peer.backlog->wake_reaper(false);
  peer.paused = false;
  peer.socket.reset();
}

// All that it has said is read: it says nothing more.
void Channel::Impl::close_connection(std::uint64_t id) {
  const auto found = peers.find(id);
  ChannelPeer& peer = found->second;
  if (peer.has_forwarded) worker.post([this, lease = *peer.lease] { keeper.hears_no_more(lease); });
  close_socket(peer);
  if (!peer.lease) {
    peers.erase(found);
    return;
  }
  peer.watch->signs().connection_closed = true;
  look_at(id);
}

void Channel::Impl::look_at(std::uint64_t id) {
  const auto found = peers.find(id);
  if (found == peers.end() || !found->second.watch) return;
  ChannelPeer& peer = found->second;
  DeathSigns& signs = peer.watch->signs();
  const Clock::time_point now = Clock::now();
  const auto quiet_at = signs.quiet_at(now);
  if (!signs.gone()) return;
  const std::uint32_t lease = *peer.lease;
  peer.complete_again.reset();
  if (keeper.complete_waits(lease)) peer.complete_again = now + kCompleteForwarderAgain;
  if (std::string why = signs.why(); !peer.reported_gone || why != peer.reported_why) {
    worker.post([this, lease, why] { keeper.lease_gone(lease, why); });
    peer.reported_gone = true;
    peer.reported_why = std::move(why);
  }
  LIMBO_FAIL_POINT("peer.after_gone");
  if (!quiet_at || *quiet_at > now) return;
  const std::uint32_t flags = peer.watch->life_line_flags();
  hear_out(id);  // its last word may be that its life line proves less
  if (peer.watch->life_line_flags() != flags) {
    look_at(id);
    return;
  }
  end_lease(id);
  LIMBO_FAIL_POINT("peer.after_quiet");
}

void Channel::Impl::end_lease(std::uint64_t id) {
  hear_out(id);
  worker.post([this, lease = *peers.at(id).lease] { keeper.lease_quiet(lease); });
  drop(id);
}

// Its GPU may still write, and set back what was completed for those who wait for it: where it has
// sent on, it is watched until it is quiet.
void Channel::Impl::force_end(std::uint64_t id) {
  hear_out(id);
  ChannelPeer& peer = peers.at(id);
  if (peer.forced) return;
  const std::uint32_t lease = *peer.lease;
  if (!keeper.complete_waits(lease)) {
    end_lease(id);
    return;
  }
  worker.post([this, lease] { keeper.lease_forced(lease); });
  peer.forced = true;
  peer.complete_again = Clock::now() + kCompleteForwarderAgain;
  if (peer.socket.valid()) close_socket(peer);
}

// Whoever asks a question only has closed its connection by then.
void Channel::Impl::end_handshake(std::uint64_t id) {
  hear_out(id);
  const ChannelPeer& peer = peers.at(id);
  if (peer.lease) return;  // it has said it after all
  answer(peer.socket.get(), MessageType::kRefused, ErrorCode::kNoChannel, "No hello came in time");
  drop(id);
}

void Channel::Impl::drop(std::uint64_t id) {
  const auto found = peers.find(id);
  if (found == peers.end()) return;
  if (found->second.socket.valid()) close_socket(found->second);
  peers.erase(found);
}

void Channel::Impl::reap(bool force) {
  LIMBO_FAIL_POINT("reap.before_look");
  std::vector<std::uint64_t> ids;
  for (const auto& [id, peer] : peers) {
    if (peer.watch) ids.push_back(id);
  }
  for (const std::uint64_t id : ids) {
    peers.at(id).watch->look_now();  // its own end only
    const auto left = peers.find(id);
    if (force && left != peers.end() && left->second.watch->signs().gone()) force_end(id);
  }
}

// A peer that has yet to say hello, or one with a lease; it may be gone afterwards.
void Channel::Impl::run_for(std::uint64_t id, Clock::time_point now,
                            std::optional<Clock::time_point>& next) {
  const auto wake_at = [&](Clock::time_point when) {
    if (!next || when < *next) next = when;
  };
  ChannelPeer& peer = peers.at(id);
  if (peer.handed_nothing) return give_up(id);
  if (peer.backlog->left()) return drop(id);
  if (peer.paused && !resume(id, peer)) {
    read(id);  // where it is not watched it is looked at
    if (peers.find(id) == peers.end()) return;
    wake_at(now + ServiceThread::kWatchAgain);
  }
  if (!peer.lease) {
    if (peer.handshake_until > now) {
      wake_at(peer.handshake_until);
      return;
    }
    end_handshake(id);
    return;
  }
  const bool seen = peer.watch->try_again();
  const auto quiet_at = peer.watch->signs().quiet_at(now);
  const bool untold = peer.watch->signs().gone() && !peer.reported_gone;
  if (seen || untold || (quiet_at && *quiet_at <= now) ||
      (peer.complete_again && *peer.complete_again <= now)) {
    look_at(id);
    if (peers.find(id) == peers.end()) return;
  }
  if (!peer.watch->stands()) wake_at(now + ServiceThread::kWatchAgain);
  if (peer.complete_again) wake_at(*peer.complete_again);
  if (quiet_at && *quiet_at > now) wake_at(*quiet_at);
}

std::optional<Channel::Impl::Clock::time_point> Channel::Impl::run(Clock::time_point now) {
  if (closed) return std::nullopt;
  std::optional<Clock::time_point> next;
  for (auto entry = peers.begin(); entry != peers.end();) {
    const std::uint64_t id = (entry++)->first;  // its own end only
    try {
      run_for(id, now, next);
    } catch (const std::exception&) {
      // No memory for what is to be said of this one: again later, and it keeps no other waiting.
      const auto again = now + ServiceThread::kWatchAgain;
      if (!next || again < *next) next = again;
    }
  }
  if (paused_until && *paused_until <= now) {
    paused_until = now + kPauseWithoutDescriptors;  // where it fails
    reaper.watch(listener.get(), [this] { accept_some(); });
    paused_until.reset();
  }
  if (paused_until && (!next || *paused_until < *next)) next = *paused_until;
  return next;
}

void Channel::Impl::shut() {
  closed = true;
  if (listener.valid()) reaper.unwatch(listener.get());
  fork_guard::set_listener(-1);
  listener.reset();
  for (auto& [id, peer] : peers) {
    if (peer.socket.valid()) reaper.unwatch(peer.socket.get());
    peer.backlog->wake_reaper(false);
  }
  peers.clear();
}

}  // namespace limbo
