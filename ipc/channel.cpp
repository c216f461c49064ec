#include "ipc/channel.h"

#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "allocator/error.h"
#include "ipc/channel_impl.h"
#include "ipc/channel_requests.h"
#include "ipc/fail_points.h"
#include "ipc/fork_guard.h"
#include "ipc/incarnation.h"
#include "ipc/life_line.h"

namespace limbo {
namespace {

// How many messages of one connection are read before others have their turn.
constexpr int kMessagesInARow = 16;

}  // namespace

void Channel::Impl::start() {
  remove_dead_sockets(directory);
  listener = listen_in(directory, name);
  fork_guard::set_listener(listener.get());
  paused_until = Clock::now();  // the periodic watches it
  reaper.post([self = shared_from_this()] {
    self->reaper.add_periodic(
        [weak = std::weak_ptr(self)](Clock::time_point now) -> std::optional<Clock::time_point> {
          const auto impl = weak.lock();
          return impl ? impl->run(now) : std::nullopt;
        });
  });
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
                            const std::optional<protocol::ClaimTarget>& made) {
  const auto found = peers.find(id);
  if (found == peers.end() || !found->second.socket.valid()) return false;
  if (!send_packet(found->second.socket.get(), message)) return false;
  if (made) found->second.unheard.push_back(*made);
  return true;
}

void Channel::Impl::accept_all() {
  while (true) {
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
  ChannelPeer peer;
  peer.socket = std::move(socket);
  peer.pid = identity.pid;
  peer.pidfd = std::move(identity.pidfd);
  peer.handshake_until = Clock::now() + kHandshakeDeadline;
  if (identity.uid != ::geteuid()) {
    answer(peer, MessageType::kRefused, ErrorCode::kNoChannel,
           "The sender runs as user " + std::to_string(::geteuid()) + ", the receiver as user " +
               std::to_string(identity.uid) + "; both must be one");
    return;
  }
  if (!peer.pidfd.valid()) {
    answer(
        peer, MessageType::kRefused, ErrorCode::kNoChannel,
        "The sender's kernel gives no pidfd for this process, so its death could not be noticed");
    return;
  }
  const std::uint64_t id = next_peer++;
  const ChannelPeer& kept = peers.emplace(id, std::move(peer)).first->second;
  try {
    reaper.watch(kept.socket.get(), [this, id] { read(id); });
  } catch (const Error& failure) {
    answer(kept, MessageType::kRefused, ErrorCode::kNoChannel, failure.what());
    drop(id);
  }
}

void Channel::Impl::read(std::uint64_t id) {
  for (int count = 0; count < kMessagesInARow; ++count) {
    const auto found = peers.find(id);
    if (found == peers.end() || !found->second.socket.valid()) return;
    Packet packet;
    const PacketStatus status = receive_packet(found->second.socket.get(), packet);
    if (status == PacketStatus::kNothing) return;
    if (status == PacketStatus::kClosed) {
      close_connection(id);
      return;
    }
    take(id, found->second, packet);
  }
}

void Channel::Impl::take(std::uint64_t id, ChannelPeer& peer, Packet& packet) {
  MessageHeader header;
  std::string wrong = check_frame(packet.bytes, packet.descriptors.size(), header);
  if (packet.cut) wrong = "A message is longer, or has more descriptors, than any may have";
  if (!wrong.empty()) {
    const bool later = header.version == kMessageVersion &&
                       message_name(header.type) != "unknown" &&
                       wrong.ends_with("not available yet");
    const bool stranger = header.version != kMessageVersion && !peer.lease;
    answer(peer, MessageType::kError,
           later      ? ErrorCode::kNotAvailableYet
           : stranger ? ErrorCode::kNoChannel
                      : ErrorCode::kBadArgument,
           wrong);
    return;
  }
  const auto type = static_cast<MessageType>(header.type);
  if (type == MessageType::kError) return;  // an answer to an answer would never end
  if (type == MessageType::kHello) {
    take_hello(id, peer, packet);
    return;
  }
  if (questions != nullptr && is_question(type) && questions->take(id, packet.bytes)) return;
  if (Heard heard; type == MessageType::kHeard && decode(packet.bytes, heard)) {
    take_heard(peer, {heard.export_index, heard.generation});
    return;
  }
  if (!peer.lease) {
    answer(peer, MessageType::kError, ErrorCode::kBadArgument, "Say hello first");
    return;
  }
  const std::uint32_t lease = *peer.lease;
  if (type == MessageType::kRowHalfFull) {
    worker.post([this, lease] { keeper.row_half_full(lease); });
  } else if (type == MessageType::kBye) {
    worker.post([self = shared_from_this(), id, lease] {
      if (!self->keeper.lease_left(lease)) return;  // it holds something all the same
      self->reaper.post([self, id] { self->drop(id); });
    });
  } else if (type == MessageType::kLostContext) {
    worker.post([this, lease] { keeper.context_lost(lease); });
  } else if (Decline decline; type == MessageType::kDecline && decode(packet.bytes, decline)) {
    worker.post([this, lease, decline] {
      keeper.decline(lease, decline.export_index, decline.generation);
    });
  } else if (TakeBack back; type == MessageType::kTakeBack && decode(packet.bytes, back)) {
    worker.post(
        [this, lease, back] { keeper.take_back(lease, back.export_index, back.generation); });
  } else if (Forward forward; type == MessageType::kForward && decode(packet.bytes, forward)) {
    peer.has_forwarded = true;
    answer_forward(keeper, worker, {peer.socket.get(), lease, *peer.watch}, forward);
  } else if (AskTimelines ask; type == MessageType::kTimeline && decode(packet.bytes, ask)) {
    answer_timeline(keeper, {peer.socket.get(), lease, *peer.watch}, ask);
  } else {
    answer(peer, MessageType::kError, ErrorCode::kBadArgument,
           "Message \"" + std::string(message_name(header.type)) +
               "\" is none that a sender takes, or its fields are out of range");
  }
}

// Of the answer to a question on this connection, or of what was forwarded.
void Channel::Impl::take_heard(ChannelPeer& peer, const protocol::ClaimTarget& made) {
  if (std::erase(peer.unheard, made) > 0 || !peer.lease) return;
  worker.post([this, lease = *peer.lease, made] { keeper.heard(lease, made); });
}

void Channel::Impl::take_hello(std::uint64_t id, ChannelPeer& peer, Packet& packet) {
  Hello hello;
  std::string wrong;
  if (peer.lease) {
    wrong = "Hello was said before";
  } else if (!decode(packet.bytes, hello)) {
    wrong = "The fields of hello are out of range";
  } else if (hello.ledger_version != kLedgerVersion) {
    wrong = "The receiver reads ledgers of version " + std::to_string(hello.ledger_version) +
            ", the sender has version " + std::to_string(kLedgerVersion) +
            "; use the same version of Limbo in both";
  } else if (!is_life_line(packet.descriptors[0].get())) {
    wrong = "The descriptor in hello is no life line";
  }
  if (!wrong.empty()) {
    answer(peer, MessageType::kRefused, ErrorCode::kNoChannel, wrong);
    return;
  }
  try {
    const bool late = (hello.life_line_flags & life_line::kLate) != 0;
    LIMBO_FAIL_POINT("accept.before_lease");
    const LeaseGrant grant = keeper.add_lease({hello.incarnation, peer.pid, late});
    peer.lease = grant.lease_number;
    // From here on the lease ends by the watch alone.
    peer.watch =
        std::make_unique<PeerWatch>(reaper, std::move(peer.pidfd), std::move(packet.descriptors[0]),
                                    hello.life_line_flags, [this, id] { look_at(id); });
    LIMBO_FAIL_POINT("accept.after_lease");
    if (!welcome(peer, grant)) {
      give_up(id);
      return;
    }
    LIMBO_FAIL_POINT("accept.after_welcome");
  } catch (const Error& failure) {
    answer(peer, MessageType::kRefused, failure.code(), failure.what());
    if (peer.lease) give_up(id);
  }
}

// False: the consumer is dead, or has missed its deadline and gone.
bool Channel::Impl::welcome(const ChannelPeer& peer, const LeaseGrant& grant) {
  Welcome message;
  message.lease_number = grant.lease_number;
  message.incarnation = incarnation;
  message.life_line_flags = life_line::flags();
  message.capacities = grant.capacities;
  const int descriptors[Welcome::kDescriptors] = {grant.ledger_fd, grant.timelines_fd, grant.row_fd,
                                                  life_line::far_end(), grant.own_timelines_fd};
  return send_packet(peer.socket.get(), encode(message), descriptors);
}

Channel::Channel(ServiceThread& reaper, ServiceThread& worker, LeaseKeeper& keeper,
                 const Incarnation& incarnation, Answerer* answerer)
    : impl_(std::make_shared<Impl>(reaper, worker, keeper, incarnation)) {
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
