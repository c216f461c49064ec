// What a consumer asks its producer for: an export to send on, and the timelines of forwarders.
#include <string>
#include <thread>
#include <utility>

#include "allocator/error.h"
#include "ipc/fail_points.h"
#include "ipc/messages.h"
#include "ipc/numbers_behind.h"
#include "ipc/producer_link.h"
#include "ipc/protocol/upstream.h"

namespace limbo {
namespace {

using Clock = std::chrono::steady_clock;

// How soon an owner is asked again that had no room, or knew more than this process did.
constexpr std::chrono::milliseconds kAskAgain{5};

Forward message_of(const ForwardRequest& request, const AlsoBehind& also, std::uint64_t number) {
  Forward message;
  message.request = number;
  message.slot = request.slot;
  message.export_index = request.held.export_index;
  message.generation = request.held.generation;
  message.offset_bytes = request.offset_bytes;
  message.size_bytes = request.size_bytes;
  message.consumers = request.consumers;
  message.time_limit_ms = static_cast<std::uint64_t>(request.time_limit.count());
  for (std::size_t i = 0; i < 2; ++i) {
    message.timeline[i] = request.points[i].index;
    message.number[i] = request.points[i].number;
  }
  for (const NumberBehind& behind : also.numbers) message.also_behind.push_back(behind.point);
  message.also_lost = also.lost;
  return message;
}

// As things stand now.
AlsoBehind also_of(const NumbersBehind& behind) {
  AlsoBehind also = behind.also();
  if (also.numbers.size() <= protocol::kMostUpstream) return also;
  throw Error(ErrorCode::kLedgerFull,
              "The memory is behind " + std::to_string(also.numbers.size()) +
                  " numbers of earlier senders that have not come; a message may name " +
                  std::to_string(protocol::kMostUpstream) + ".",
              "Wait until the work of those who sent it on before is done, or send a clone().");
}

MessageType type_of(const Packet& answer) {
  MessageHeader header;
  (void)check_frame(answer.bytes, answer.descriptors.size(), header);  // the reaper has checked it
  return static_cast<MessageType>(header.type);
}

// What an answer is that grants nothing.
[[noreturn]] void throw_refusal(const Packet& answer) {
  AskedInVain vain;
  if (type_of(answer) == MessageType::kAskedInVain && decode(answer.bytes, vain))
    throw Error(vain.code, vain.text);
  throw Error(ErrorCode::kNoChannel, "The owner of the memory has given an answer that is none.",
              "Use the same version of Limbo in both processes.");
}

}  // namespace

Packet ProducerLink::ask(const std::string& what,
                         const std::function<MessageBytes(std::uint64_t)>& message) {
  const auto exited = [&] {
    return Error(ErrorCode::kProducerExited,
                 "The process that owns this memory has ended, and was to " + what + ".",
                 "Send a clone() of it.");
  };
  if (producer_has_ended()) throw exited();
  try {
    return requests_.ask(what, message);
  } catch (const Error&) {
    if (producer_has_ended()) throw exited();
    throw;
  }
}

std::array<TimelinePoint, 2> ProducerLink::advance(std::span<const StreamRef> streams) {
  if (told_context_lost_.load()) {
    throw Error(ErrorCode::kDeviceError, "The GPU context of this process is lost.",
                "Restart the process.");
  }
  return joining_.advance(streams);
}

// Before anybody else hears of it: what its owner has to believe unheard is withdrawn when this process
// ends, or the connection.
void ProducerLink::say_heard(const ExportTicket& made) {
  const Heard message{made.export_index, made.generation};
  if (requests_.say(encode(message), Clock::now() + kAnswerDeadline)) return;
  throw Error(
      ErrorCode::kNoChannel,
      "The owner of the memory could not be told that its answer has come: the connection to "
      "it is closed, or takes nothing more.",
      "Try again, or send a clone().");
}

ExportTicket ProducerLink::forward(const ForwardRequest& request, const ExportTicket& held,
                                   const NumbersBehind& behind) {
  const Clock::time_point until = Clock::now() + kAnswerDeadline;
  LIMBO_FAIL_POINT("sendon.before_ask");
  while (true) {
    const AlsoBehind also = also_of(behind);
    const Packet answer = ask("send it on", [&](std::uint64_t number) {
      return encode(message_of(request, also, number));
    });
    Forwarded made;
    if (type_of(answer) == MessageType::kForwarded && decode(answer.bytes, made)) {
      has_sent_on_.store(true);
      ExportTicket ticket = held;
      ticket.export_index = made.export_index;
      ticket.generation = made.generation;
      ticket.offset_bytes = request.offset_bytes;
      ticket.size_bytes = request.size_bytes;
      for (std::size_t i = 0; i < 2; ++i) {
        if (protocol::makes(protocol::Mistake::kForwardWithoutOwnPoints)) continue;
        ticket.points[i] = {};
        if (request.points[i].number == 0) continue;
        ticket.points[i] = {lease_number_ + 1, request.points[i].index, request.points[i].number};
      }
      try {
        LIMBO_FAIL_POINT("sendon.after_answer");
        say_heard(ticket);
        LIMBO_FAIL_POINT("sendon.after_heard");
      } catch (...) {
        (void)take_back(made.export_index, made.generation);
        throw;
      }
      return ticket;
    }
    AskedInVain vain;
    // It is full, or what was named has come since.
    const bool again =
        type_of(answer) == MessageType::kAskedInVain && decode(answer.bytes, vain) &&
        (vain.code == ErrorCode::kLedgerFull || vain.code == ErrorCode::kNotAvailableYet) &&
        Clock::now() < until;
    if (!again) throw_refusal(answer);
    std::this_thread::sleep_for(kAskAgain);
  }
}

SenderPoint ProducerLink::meet(const TimelinePoint& point) {
  SenderPoint sent{point, nullptr};
  const bool foreign = point.number != 0 && point.owner != 0 && point.owner - 1 != lease_number_;
  if (foreign) sent.foreign = timelines_of(point.owner - 1);
  return sent;
}

std::shared_ptr<LeaseTimelines> ProducerLink::timelines_of(std::uint32_t lease) {
  const bool is_new = !foreign_.has(lease);
  auto timelines =
      foreign_.get(lease, [this](std::uint32_t number) { return ask_for_timelines(number); });
  // It has to be watched, and may be dead already.
  if (ServiceThread* reaper = reaper_.load(); is_new && reaper != nullptr) reaper->ring();
  return timelines;
}

ForeignTimelines ProducerLink::ask_for_timelines(std::uint32_t lease) {
  LIMBO_FAIL_POINT("forwarder.before_ask");
  Packet answer = ask("name the process that has sent its memory on", [&](std::uint64_t number) {
    return encode(AskTimelines{number, lease});
  });
  GivenTimelines given;
  if (type_of(answer) != MessageType::kTimelines || !decode(answer.bytes, given)) {
    throw_refusal(answer);
  }
  ForeignTimelines foreign;
  const std::string name = "limbo-timelines-" + std::to_string(lease);  // or the descriptor is lost
  foreign.timelines = std::make_shared<LeaseTimelines>(
      device_,
      SharedMemory::map_received(name, answer.descriptors[0].release(),
                                 timelines_bytes(capacities_), ReceiverMay::kWrite),
      capacities_.timelines);
  foreign.pidfd = std::move(answer.descriptors[1]);
  foreign.life_line = std::move(answer.descriptors[2]);
  foreign.life_line_flags = given.life_line_flags;
  if (!is_life_line(foreign.life_line.get())) {
    throw Error(ErrorCode::kNoChannel, "The life line of a process that sent memory on is none.");
  }
  LIMBO_FAIL_POINT("forwarder.after_map");
  return foreign;
}

}  // namespace limbo
