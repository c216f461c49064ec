// How a connection ends, and a lease: from the signs of its process's death, by its own word, or
// because there is nobody any more who could be told.
#include <vector>

#include "ipc/channel_impl.h"
#include "ipc/fail_points.h"
#include "ipc/fork_guard.h"

namespace limbo {
namespace {

// How often the waits on a forwarder that is gone and not quiet are completed.
constexpr std::chrono::milliseconds kCompleteForwarderAgain{20};

}  // namespace

// A lease whose tables were not handed out: there is nothing that its consumer could hold.
void Channel::Impl::give_up(std::uint64_t id) {
  const std::uint32_t lease = *peers.at(id).lease;
  drop(id);
  worker.post([this, lease] {
    keeper.lease_gone(lease, "it was handed nothing");
    keeper.lease_quiet(lease);
  });
}

void Channel::Impl::close_connection(std::uint64_t id) {
  const auto found = peers.find(id);
  ChannelPeer& peer = found->second;
  reaper.unwatch(peer.socket.get());
  peer.socket.reset();
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
    peer.reported_gone = true;
    peer.reported_why = why;
    worker.post([this, lease, why = std::move(why)] { keeper.lease_gone(lease, why); });
  }
  LIMBO_FAIL_POINT("peer.after_gone");
  if (!quiet_at || *quiet_at > now) return;
  end_lease(id);
  LIMBO_FAIL_POINT("peer.after_quiet");
}

void Channel::Impl::end_lease(std::uint64_t id) {
  const std::uint32_t lease = *peers.at(id).lease;
  drop(id);
  worker.post([this, lease] { keeper.lease_quiet(lease); });
}

void Channel::Impl::drop(std::uint64_t id) {
  const auto found = peers.find(id);
  if (found == peers.end()) return;
  if (found->second.socket.valid()) reaper.unwatch(found->second.socket.get());
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
    if (force && left != peers.end() && left->second.watch->signs().gone()) end_lease(id);
  }
}

// A peer that has yet to say hello, or one with a lease; it may be gone afterwards.
void Channel::Impl::run_for(std::uint64_t id, Clock::time_point now,
                            std::optional<Clock::time_point>& next) {
  const auto wake_at = [&](Clock::time_point when) {
    if (!next || when < *next) next = when;
  };
  ChannelPeer& peer = peers.at(id);
  if (!peer.lease) {
    if (peer.handshake_until > now) {
      wake_at(peer.handshake_until);
      return;
    }
    answer(peer, MessageType::kRefused, ErrorCode::kNoChannel, "No hello came in time");
    drop(id);
    return;
  }
  const bool seen = peer.watch->try_again();
  const auto quiet_at = peer.watch->signs().quiet_at(now);
  if (seen || (quiet_at && *quiet_at <= now) ||
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
    run_for(id, now, next);
  }
  if (paused_until && *paused_until <= now) {
    paused_until = now + kPauseWithoutDescriptors;  // where it fails
    reaper.watch(listener.get(), [this] { accept_all(); });
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
  }
  peers.clear();
}

}  // namespace limbo
