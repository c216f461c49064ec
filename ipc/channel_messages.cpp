// What a producer's end of the channel does with a message.
#include <exception>
#include <string>
#include <utility>

#include "allocator/error.h"
#include "ipc/channel_impl.h"
#include "ipc/channel_requests.h"
#include "ipc/fail_points.h"
#include "ipc/life_line.h"

namespace limbo {

// ---- to the worker ------------------------------------------------------------------------------

// Counts as undone until it is done.
template <typename Does>
void Channel::Impl::post_for(const ChannelPeer& peer, Does does) {
  worker.post([turn = peer.backlog->turn(), does = std::move(does)] {
    static_cast<void>(turn);
    does();
  });
}

// What was asked for and has not begun covers this one too.
template <typename Does>
void Channel::Impl::post_once(const ChannelPeer& peer, Backlog::Once what, Does does) {
  const std::shared_ptr<Backlog>& backlog = peer.backlog;
  if (!backlog->ask(what)) return;
  try {
    worker.post([backlog, what, does = std::move(does)] {
      backlog->begins(what);
      does();
    });
  } catch (...) {
    backlog->begins(what);
    throw;
  }
}

// ---- every message ------------------------------------------------------------------------------

void Channel::Impl::take_untaken(std::uint64_t id, ChannelPeer& peer) {
  if (!peer.untaken) return;
  take(id, peer, *peer.untaken);
  peer.untaken.reset();
}

void Channel::Impl::take(std::uint64_t id, ChannelPeer& peer, Packet& packet) {
  MessageHeader header;
  std::string wrong = check_frame(packet.bytes, packet.descriptors.size(), header);
  if (packet.cut) wrong = kCutMessage;
  const auto type = static_cast<MessageType>(header.type);
  // An answer to an answer would never end, whatever version it is of.
  if (type == MessageType::kError) return;
  if (!wrong.empty()) {
    const bool stranger = header.version != kMessageVersion && !peer.lease;
    answer(peer.socket.get(), MessageType::kError,
           stranger ? ErrorCode::kNoChannel : code_of_wrong(header), wrong);
    return;
  }
  if (type == MessageType::kHello) {
    take_hello(id, peer, packet);
    return;
  }
  if (is_question(type) && take_question(id, peer, type, packet.bytes)) return;
  if (Heard heard; type == MessageType::kHeard && decode(packet.bytes, heard)) {
    take_heard(peer, {heard.export_index, heard.generation});
    return;
  }
  if (!peer.lease) {
    answer(peer.socket.get(), MessageType::kError, ErrorCode::kBadArgument, "Say hello first");
    return;
  }
  if (take_of_lease(peer, type, packet.bytes)) return;
  answer(peer.socket.get(), MessageType::kError, ErrorCode::kBadArgument,
         "Message \"" + std::string(message_name(header.type)) +
             "\" is none that a sender takes, or its fields are out of range");
}

// False: its fields are out of range, or questions are not answered here.
bool Channel::Impl::take_question(std::uint64_t id, ChannelPeer& peer, MessageType type,
                                  ByteSpan bytes) {
  if (questions == nullptr) return false;
  if (type == MessageType::kAcquire && peer.unheard.size() >= bounds.unheard) {
    answer(peer.socket.get(), MessageType::kError, ErrorCode::kBadArgument,
           std::to_string(bounds.unheard) +
               " messages were acquired over this connection and not heard of; say heard first");
    return true;
  }
  return questions->take(id, bytes, peer.backlog->turn());
}

// Of the answer to a question on this connection, or of what was forwarded.
void Channel::Impl::take_heard(ChannelPeer& peer, const protocol::ClaimTarget& made) {
  if (std::erase(peer.unheard, made) > 0 || !peer.lease) return;
  keeper.heard(*peer.lease, made);
}

// ---- from whoever has a lease -------------------------------------------------------------------

// False: it is none that is taken, or its fields are out of range.
bool Channel::Impl::take_of_lease(ChannelPeer& peer, MessageType type, ByteSpan bytes) {
  const std::uint32_t lease = *peer.lease;
  const Asker asker{peer.socket.get(), lease, *peer.watch};
  if (type == MessageType::kRowHalfFull) {
    post_once(peer, Backlog::kHalfFull, [this, lease] { keeper.row_half_full(lease); });
  } else if (type == MessageType::kLostContext) {
    post_once(peer, Backlog::kLostContext, [this, lease] { keeper.context_lost(lease); });
  } else if (type == MessageType::kBye) {
    take_bye(peer);
  } else if (ProvesLess less; type == MessageType::kProvesLess && decode(bytes, less)) {
    peer.watch->proves_less(less.life_line_flags);
  } else if (Decline decline; type == MessageType::kDecline && decode(bytes, decline)) {
    post_for(peer, [this, lease, decline] {
      keeper.decline(lease, decline.export_index, decline.generation);
    });
  } else if (TakeBack back; type == MessageType::kTakeBack && decode(bytes, back)) {
    post_for(peer,
             [this, lease, back] { keeper.take_back(lease, back.export_index, back.generation); });
  } else if (Forward forward; type == MessageType::kForward && decode(bytes, forward)) {
    const Backlog::Turn turn = peer.backlog->turn();
    peer.has_forwarded = true;
    answer_forward(keeper, worker, asker, forward, turn);
  } else if (AskTimelines ask; type == MessageType::kTimeline && decode(bytes, ask)) {
    answer_timeline(keeper, asker, ask);
  } else {
    return false;
  }
  return true;
}

// It has the whole row looked at, and is said once: who holds something all the same has lied, and
// its lease ends with its process.
void Channel::Impl::take_bye(ChannelPeer& peer) {
  if (peer.has_said_bye) return;
  worker.post([this, lease = *peer.lease, backlog = peer.backlog] {
    if (keeper.lease_left(lease)) backlog->has_left();
  });
  peer.has_said_bye = true;
}

// ---- hello --------------------------------------------------------------------------------------

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
    answer(peer.socket.get(), MessageType::kRefused, ErrorCode::kNoChannel, wrong);
    return;
  }
  try {
    greet(id, peer, hello, packet);
    return;
  } catch (const Error& failure) {
    answer(peer.socket.get(), MessageType::kRefused, failure.code(), failure.what());
  } catch (const std::exception&) {
    answer(peer.socket.get(), MessageType::kRefused, ErrorCode::kNoChannel,
           "The sender's host memory is used up");
  }
  peer.handed_nothing = peer.lease.has_value();  // the periodic gives it up
}

void Channel::Impl::greet(std::uint64_t id, ChannelPeer& peer, const Hello& hello, Packet& packet) {
  peer.process.incarnation = hello.incarnation;
  refuse_beyond_bounds(peer);
  const bool late = (hello.life_line_flags & life_line::kLate) != 0;
  LIMBO_FAIL_POINT("accept.before_lease");
  const LeaseGrant grant = keeper.add_lease({peer.process, late});
  // From here on the lease ends by the watch alone, and making it takes no memory.
  peer.lease = grant.lease_number;
  peer.watch.emplace(reaper, std::move(peer.pidfd), std::move(packet.descriptors[0]),
                     hello.life_line_flags, [this, id] { look_at(id); });
  LIMBO_FAIL_POINT("accept.after_lease");
  welcome(peer, grant);
  LIMBO_FAIL_POINT("accept.after_welcome");
}

// Those of a process that has ended do not count: its pid may be another's by now.
void Channel::Impl::refuse_beyond_bounds(const ChannelPeer& peer) {
  const std::uint32_t leases = count_of(peer.process, [](ChannelPeer& other) {
    return other.lease && !other.watch->signs().process_ended;
  });
  if (leases < bounds.leases) return;
  throw Error(ErrorCode::kNoChannel,
              "Process " + std::to_string(peer.process.pid) + " has " + std::to_string(leases) +
                  " leases here already, of connections that it has closed or still has, and one "
                  "process may have no more.",
              "Start it anew; where this comes again, find out what in it closes its connections");
}

// A consumer that is dead, or has missed its deadline and gone, is handed nothing.
void Channel::Impl::welcome(ChannelPeer& peer, const LeaseGrant& grant) {
  Welcome message;
  message.lease_number = grant.lease_number;
  message.incarnation = incarnation;
  message.capacities = grant.capacities;
  const int descriptors[Welcome::kDescriptors] = {grant.ledger_fd, grant.timelines_fd, grant.row_fd,
                                                  life_line::far_end(), grant.own_timelines_fd};
  message.life_line_flags = life_line::flags();  // of the line that may just have been made
  peer.handed_nothing = !send_packet(peer.socket.get(), encode(message), descriptors);
}

}  // namespace limbo
