#include "ipc/channel.h"

#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "allocator/error.h"
#include "ipc/channel_impl.h"
#include "ipc/fork_guard.h"
#include "ipc/incarnation.h"

namespace limbo {
namespace {

// How many messages of one connection are read, and how many connections are let in, before others
// have their turn. The watches tell again of what is left.
constexpr int kMessagesInARow = 16;
constexpr int kAcceptsInARow = 32;

}  // namespace

void Channel::Impl::start() {
  remove_dead_sockets(directory);
  listener = listen_in(directory, name);
  paused_until = Clock::now();  // the periodic watches it
  reaper.post([self = shared_from_this()] {
    self->reaper.add_periodic(
        [weak = std::weak_ptr(self)](Clock::time_point now) -> std::optional<Clock::time_point> {
          const auto impl = weak.lock();
          return impl ? impl->run(now) : std::nullopt;
        });
  });
  fork_guard::set_listener(listener.get());
}

void Channel::Impl::answer_by(Answerer& answerer) {
  questions = std::make_shared<Questions>(
      reaper, worker, answerer,
      [weak = weak_from_this()](bool force) {
        const auto impl = weak.lock();
        if (impl == nullptr || impl->closed) return false;
        impl->reap(force);
        return true;
      },
      [weak = weak_from_this()](std::uint64_t id, ByteSpan message,
                                const std::optional<protocol::ClaimTarget>& made) {
        const auto impl = weak.lock();
        return impl != nullptr && impl->deliver(id, message, made);
      });
}

bool Channel::Impl::deliver(std::uint64_t id, ByteSpan message,
                            const std::optional<protocol::ClaimTarget>& made) noexcept {
  const auto found = peers.find(id);
  if (found == peers.end() || !found->second.socket.valid()) return false;
  ChannelPeer& peer = found->second;
  try {
    if (made) peer.unheard.push_back(*made);
  } catch (const std::exception&) {
    return false;  // no memory to see to it that it is heard of
  }
  if (send_packet(peer.socket.get(), message)) return true;
  if (made) peer.unheard.pop_back();
  return false;
}

void Channel::Impl::accept_some() {
  for (int count = 0; count < kAcceptsInARow; ++count) {
    OwnedFd socket(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (socket.valid()) {
      accept_one(std::move(socket));
      continue;
    }
    if (errno == EINTR || errno == ECONNABORTED) continue;
    if (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS) {
      // The listener stays readable: without a pause this would be a loop.
      reaper.unwatch(listener.get());
      paused_until = Clock::now() + kPauseWithoutDescriptors;
    }
    return;
  }
}

void Channel::Impl::accept_one(OwnedFd socket) {
  PeerIdentity identity = identify_peer(socket.get());
  if (identity.ended) return;
  const auto refuse = [&](const std::string& why) {
    answer(socket.get(), MessageType::kRefused, ErrorCode::kNoChannel, why);
  };
  if (identity.uid != ::geteuid()) {
    refuse("The sender runs as user " + std::to_string(::geteuid()) + ", the receiver as user " +
           std::to_string(identity.uid) + "; both must be one");
    return;
  }
  if (!identity.pidfd.valid()) {
    refuse(
        "The sender's kernel gives no pidfd for this process, so its death could not be noticed");
    return;
  }
  const ProcessIdentity process = identify_process(identity.pidfd.get(), identity.pid);
  const auto is_stranger = [](const ChannelPeer& peer) { return !peer.lease; };
  if (count_of(process, is_stranger) >= bounds.strangers) {
    refuse("Process " + std::to_string(identity.pid) + " has " + std::to_string(bounds.strangers) +
           " connections to the sender already that have not said hello, as many as one process "
           "may have at a time");
    return;
  }
  const auto backlog = std::make_shared<Backlog>(reaper, bounds.undone);
  const std::uint64_t id = next_peer++;
  ChannelPeer& peer = peers.try_emplace(id).first->second;
  peer.socket = std::move(socket);
  peer.process = process;
  peer.pidfd = std::move(identity.pidfd);
  peer.handshake_until = Clock::now() + kHandshakeDeadline;
  peer.backlog = backlog;
  try {
    watch_socket(id, peer);
  } catch (const std::exception& failure) {
    answer(peer.socket.get(), MessageType::kRefused, ErrorCode::kNoChannel, failure.what());
    drop(id);
  }
}

void Channel::Impl::watch_socket(std::uint64_t id, const ChannelPeer& peer) {
  reaper.watch(peer.socket.get(), [this, id] { read(id); });
}

void Channel::Impl::read(std::uint64_t id) {
  for (int count = 0; count < kMessagesInARow; ++count) {
    const auto found = peers.find(id);
    if (found == peers.end() || !found->second.socket.valid()) return;
    ChannelPeer& peer = found->second;
    if (peer.untaken) return;
    if (!peer.backlog->has_room()) {
      pause(peer);
      return;
    }
    Packet packet;
    const PacketStatus status = receive_packet(peer.socket.get(), packet);
    if (status == PacketStatus::kNothing) return;
    if (status == PacketStatus::kClosed) {
      close_connection(id);
      return;
    }
    peer.untaken = std::move(packet);
    try {
      take_untaken(id, peer);
    } catch (const std::exception&) {
      pause(peer);  // no memory: it is taken later, and what stands behind it after that
      return;
    }
  }
}

void Channel::Impl::pause(ChannelPeer& peer) noexcept {
  reaper.unwatch(peer.socket.get());
  peer.paused = true;
  peer.backlog->wake_reaper(true);
}

// False: there is no memory, or no watch, and it has to be tried again.
bool Channel::Impl::resume(std::uint64_t id, ChannelPeer& peer) noexcept {
  try {
    take_untaken(id, peer);
    if (!peer.backlog->has_much_room()) return true;  // whoever makes it wakes the reaper
    watch_socket(id, peer);
  } catch (const std::exception&) {
    return false;
  }
  peer.paused = false;
  peer.backlog->wake_reaper(false);
  return true;
}

Channel::Channel(ServiceThread& reaper, ServiceThread& worker, LeaseKeeper& keeper,
                 const Incarnation& incarnation, Answerer* answerer, const ChannelBounds& bounds)
    : impl_(std::make_shared<Impl>(reaper, worker, keeper, incarnation, bounds)) {
  if (answerer != nullptr) impl_->answer_by(*answerer);
  impl_->start();
}

Channel::~Channel() {
  remove_socket();
  run_and_wait(impl_->reaper, [this] { impl_->shut(); });
  // What was posted to the worker before refers to this object: wait for it too.
  run_and_wait(impl_->worker, [] {});
}

void Channel::reap(bool force) {
  run_and_wait(impl_->reaper, [this, force] { impl_->reap(force); });
  run_and_wait(impl_->worker, [] {});  // the sweeps that this has posted
}

const std::string& Channel::directory() const noexcept {
  return impl_->directory.path();
}
const std::string& Channel::socket_name() const noexcept {
  return impl_->name;
}

void Channel::remove_socket() noexcept {
  ::unlinkat(impl_->directory.fd(), impl_->name.c_str(), 0);
}

std::string channel_socket_name(const Incarnation& incarnation) {
  return to_string(incarnation) + ".sock";
}

}  // namespace limbo
