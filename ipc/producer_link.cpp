#include "ipc/producer_link.h"

#include <fcntl.h>
#include <unistd.h>

#include <iterator>
#include <utility>

#include "allocator/error.h"
#include "ipc/fail_points.h"
#include "ipc/messages.h"
#include "ipc/packet.h"
#include "ipc/protocol/memory.h"
#include "ipc/protocol/timeline.h"

namespace limbo {
namespace {

// How often the waits of a producer that is gone and not quiet are completed: a late write of its
// GPU may set a timeline back.
constexpr std::chrono::milliseconds kCompleteOrphansAgain{20};

// The descriptor is let go of when nothing can fail any more before it is taken over.
SharedMemory map(const std::string& name, OwnedFd& fd, std::size_t size_bytes,
                 ReceiverMay receiver) {
  return SharedMemory::map_received(name, fd.release(), size_bytes, receiver);
}

bool ledger_is(const LedgerView& ledger, const Incarnation& producer) {
  const LedgerHeader& header = ledger.header();
  return header.magic.load(std::memory_order_acquire) == kLedgerMagic &&
         header.version.load(std::memory_order_acquire) == kLedgerVersion &&
         header.incarnation_high.load(std::memory_order_acquire) == producer.high &&
         header.incarnation_low.load(std::memory_order_acquire) == producer.low;
}

}  // namespace

ProducerLink::ProducerLink(Device& device, const ProducerAddress& address, Handshake&& hands)
    : device_(device),
      address_(address),
      lease_number_(hands.lease_number),
      capacities_(hands.capacities),
      socket_(std::move(hands.socket)),
      pidfd_(::fcntl(hands.pidfd.get(), F_DUPFD_CLOEXEC, 0)),
      ledger_memory_(
          map("limbo-ledger", hands.ledger, ledger_layout(capacities_).total, ReceiverMay::kRead)),
      timelines_memory_(map("limbo-timelines", hands.timelines, timelines_bytes(capacities_),
                            ReceiverMay::kWrite)),
      row_memory_(map("limbo-row", hands.row, row_layout(capacities_).total, ReceiverMay::kWrite)),
      ledger_(ledger_memory_.data(), capacities_),
      row_(RowView(row_memory_.data(), capacities_)),
      imports_(device, row_.view(), ledger_),
      own_timelines_(device, capacities_.timelines,
                     map("limbo-own-timelines", hands.own_timelines, timelines_bytes(capacities_),
                         ReceiverMay::kWrite)),
      joining_(device, own_timelines_),
      requests_(socket_),
      told_life_line_flags_(hands.told_life_line_flags),
      watched_pidfd_(std::move(hands.pidfd)),
      watched_life_line_(std::move(hands.life_line)),
      life_line_flags_(hands.life_line_flags) {
  if (!pidfd_.valid()) {
    throw Error(ErrorCode::kNoChannel,
                "This process has no descriptor left to see the sender's end by.",
                "Raise the limit of open files.");
  }
  if (!ledger_is(ledger_, address_.incarnation)) {
    const std::uint64_t theirs = ledger_.header().version.load(std::memory_order_acquire);
    throw Error(ErrorCode::kNoChannel,
                theirs == kLedgerVersion
                    ? std::string("The sender's ledger is of another process than its message.")
                    : "The sender's ledger has version " + std::to_string(theirs) +
                          "; this library reads version " + std::to_string(kLedgerVersion) + ".",
                "Use the same version of Limbo in both processes.");
  }
  LIMBO_FAIL_POINT("connect.after_map");
  socket_.settle();
}

bool ProducerLink::register_tables(int device) {
  return registration_.run([&] {
    const HostMemory tables[] = {row_memory_.host_memory(row_layout(capacities_).gpu_end),
                                 timelines_memory_.host_memory(timelines_memory_.size_bytes())};
    for (; registered_ < std::size(tables); ++registered_) {
      device_.register_host_memory(device, tables[registered_]);
    }
  });
}

ProducerLink::~ProducerLink() {
  foreign_.end();
  SharedMemory* const tables[] = {&row_memory_, &timelines_memory_};
  while (registered_ > 0) {
    SharedMemory& table = *tables[--registered_];
    try {
      device_.unregister_host_memory(table.data());
    } catch (const std::exception&) {
      // The driver is gone or broken: it lets go of the memory with the process.
      table.leave_mapped();
    }
  }
}

bool ProducerLink::producer_has_ended() const noexcept {
  return gone_.load(std::memory_order_acquire) || is_readable(pidfd_.get());
}

bool ProducerLink::producer_ends_within(std::chrono::milliseconds at_most) const noexcept {
  return orphaned() || ends_within(pidfd_.get(), at_most);
}

void ProducerLink::wait(StreamRef stream, const SenderPoint& sent) {
  const TimelinePoint& point = sent.point;
  if (point.number == 0) return;
  if (sent.foreign) {
    sent.foreign->wait(stream, point.index, point.number);
    return;
  }
  if (point.index >= capacities_.timelines) {
    throw Error(ErrorCode::kBadDescriptor, "The message names timeline " +
                                               std::to_string(point.index) + " of " +
                                               std::to_string(capacities_.timelines) + ".");
  }
  if (point.owner != 0) {  // sent on by this process
    own_timelines_.wait(stream, {.owner = 0, .index = point.index, .number = point.number});
    return;
  }
  const auto* timelines = static_cast<const std::byte*>(timelines_memory_.data());
  const auto* word =
      reinterpret_cast<const std::uint64_t*>(timelines + point.index * sizeof(Timeline));
  device_.wait_word(stream, word, point.number);
}

void ProducerLink::decline(std::uint32_t export_index, std::uint64_t generation) noexcept {
  LIMBO_FAIL_POINT("decline.before_send");
  try {
    (void)socket_.send(encode(Decline{export_index, generation}));
  } catch (const std::exception&) {
    // No memory for a message: the promise ends by its time limit.
  }
}

void ProducerLink::ring_half_full() noexcept {
  try {
    (void)socket_.send(encode_row_half_full());
  } catch (const std::exception&) {
    // As above; the next claim rings again.
  }
}

bool ProducerLink::take_back(std::uint32_t export_index, std::uint64_t generation) noexcept {
  LIMBO_FAIL_POINT("sendon.before_take_back");
  try {
    return socket_.send(encode(TakeBack{export_index, generation}));
  } catch (const std::exception&) {
    return false;  // no memory for a message
  }
}

void ProducerLink::leave() noexcept {
  lost_.store(true);
  if (row_.close_if_unused() && imports_.counts().mapped == 0) socket_.bye();
}

void ProducerLink::tell_context_lost() noexcept {
  const bool told = told_context_lost_.exchange(true);
  own_timelines_.end_all();  // what was sent on waits for numbers that will not come
  if (told) return;
  try {
    (void)socket_.send(encode_context_lost());
  } catch (const std::exception&) {
    // It is for people only: the claims are given back without it.
  }
}

void ProducerLink::tell_life_line(std::uint32_t flags) noexcept {
  if ((flags & ~told_life_line_flags_.load()) == 0) return;
  try {
    if (socket_.send(encode(ProvesLess{flags}))) told_life_line_flags_.fetch_or(flags);
  } catch (const std::exception&) {
    // No memory for a message: it is looked at again.
  }
}

// Again and again until all is watched; meanwhile it is looked at here. When to be called again.
std::optional<DeathSigns::Clock::time_point> ProducerLink::watch(
    ServiceThread& reaper, DeathSigns::Clock::time_point now) {
  if (!watch_) {
    // What the signs mean is looked at in the periodic, which follows every event.
    watch_ = std::make_unique<PeerWatch>(reaper, std::move(watched_pidfd_),
                                         std::move(watched_life_line_), life_line_flags_, [] {});
    reaper_.store(&reaper);
  }
  (void)watch_->try_again();
  if (!connection_watched_ && !watch_->signs().connection_closed) {
    try {
      reaper.watch(socket_.get(), [this, &reaper] { read_connection(reaper); });
      connection_watched_ = true;
    } catch (const std::exception&) {
      read_connection(reaper);
    }
  }
  const bool all = watch_->stands() && (connection_watched_ || watch_->signs().connection_closed);
  return all ? std::nullopt : std::optional(now + ServiceThread::kWatchAgain);
}

void ProducerLink::unwatch(ServiceThread& reaper) {
  watch_.reset();
  foreign_.unwatch();
  reaper.unwatch(socket_.get());
}

void ProducerLink::read_connection(ServiceThread& reaper) {
  while (true) {
    Packet packet;
    const PacketStatus status = receive_packet(socket_.get(), packet);
    if (status == PacketStatus::kNothing) return;
    if (status == PacketStatus::kClosed) break;
    take(std::move(packet));
  }
  reaper.unwatch(socket_.get());
  lost_.store(true);
  requests_.closed();
  watch_->signs().connection_closed = true;
}

// An error about a message of ours says nothing to anybody who waits, and an answer to it would never
// end, whatever version it is of.
void ProducerLink::take(Packet&& packet) {
  MessageHeader header;
  std::string wrong = check_frame(packet.bytes, packet.descriptors.size(), header);
  if (packet.cut) wrong = kCutMessage;
  if (static_cast<MessageType>(header.type) == MessageType::kError) return;
  if (wrong.empty() && !take_answer(header, std::move(packet))) {
    wrong = "Message \"" + std::string(message_name(header.type)) +
            "\" is none that a receiver takes, or its fields are out of range";
  }
  if (wrong.empty()) return;
  (void)socket_.send(encode(Refused{code_of_wrong(header), wrong}, MessageType::kError));
}

// False: it is none to anything that is asked for here.
bool ProducerLink::take_answer(const MessageHeader& header, Packet&& packet) {
  const auto type = static_cast<MessageType>(header.type);
  if (Forwarded made; type == MessageType::kForwarded && decode(packet.bytes, made)) {
    // Whoever asked has given up: nobody will send it.
    if (!requests_.answered(made.request, std::move(packet))) {
      (void)take_back(made.export_index, made.generation);  // else it ends by its time limit
    }
  } else if (GivenTimelines given; type == MessageType::kTimelines && decode(packet.bytes, given)) {
    (void)requests_.answered(given.request, std::move(packet));
  } else if (AskedInVain vain; type == MessageType::kAskedInVain && decode(packet.bytes, vain)) {
    (void)requests_.answered(vain.request, std::move(packet));
  } else {
    return false;
  }
  return true;
}

std::optional<DeathSigns::Clock::time_point> ProducerLink::run(ServiceThread& reaper,
                                                               DeathSigns::Clock::time_point now) {
  std::optional<DeathSigns::Clock::time_point> next = watch(reaper, now);
  for (const auto wanted : {run_for_producer(now), foreign_.run(reaper, now, orphaned())}) {
    if (wanted && (!next || *wanted < *next)) next = wanted;
  }
  return next;
}

std::optional<DeathSigns::Clock::time_point> ProducerLink::run_for_producer(
    DeathSigns::Clock::time_point now) {
  const bool context_lost = producer_lost_context();
  DeathSigns& signs = watch_->signs();
  const auto quiet_at = signs.quiet_at(now);
  if (completed_ || (!signs.gone() && !context_lost)) return std::nullopt;
  if (signs.gone()) gone_.store(true, std::memory_order_release);
  LIMBO_FAIL_POINT("orphan.before_complete");
  complete_producers_waits();
  LIMBO_FAIL_POINT("orphan.after_complete");
  if (quiet_at && *quiet_at <= now) {
    completed_ = true;
    return std::nullopt;
  }
  return now + kCompleteOrphansAgain;
}

void ProducerLink::complete_producers_waits() noexcept {
  auto* timelines = static_cast<Timeline*>(timelines_memory_.data());
  for (std::uint32_t index = 0; index < capacities_.timelines; ++index) {
    protocol::end_timeline(protocol::g_memory, &timelines[index].value, &timelines[index].ended_at);
  }
}

}  // namespace limbo
