#include "ipc/ask.h"

#include <chrono>

#include "allocator/error.h"
#include "ipc/call.h"
#include "ipc/channel.h"
#include "ipc/channel_socket.h"
#include "ipc/descriptor.h"
#include "ipc/fail_points.h"
#include "ipc/questions.h"
#include "ipc/runtime_directory.h"

namespace limbo {
namespace {

constexpr std::chrono::milliseconds kAnswerWithin{1000};
// Nobody has so many: a list that never ends is a broken answerer's.
constexpr std::uint32_t kMostParts = 100'000;

constexpr CallWords kAsked{.who = "The process",
                           .cannot = "be asked",
                           .has_ended = "The process that was asked has ended",
                           .while_alive = ""};

Call call(const LendingProcess& process) {
  return Call({process.incarnation, process.directory, channel_socket_name(process.incarnation)},
              kAnswerWithin, kAsked);
}

Answer ask(const Call& call, const Question& question) {
  LIMBO_FAIL_POINT("connect.before_ask");
  call.send(encode(question));
  MessageType type = MessageType::kError;
  const Packet packet = call.answer(type);
  Answer answer;
  if (type != MessageType::kAnswer || !decode(packet.bytes, answer) || answer.to != question.type) {
    call.fail("its answer is none to \"" +
              std::string(message_name(static_cast<std::uint16_t>(question.type))) + "\"");
  }
  return answer;
}

// A list, part by part; the deadline is for each.
template <typename Line>
std::vector<Line> ask_for_list(const LendingProcess& process, MessageType type,
                               std::vector<Line> Answer::*lines) {
  std::vector<Line> all;
  Question question;
  question.type = type;
  for (std::uint32_t parts = 0; parts < kMostParts; ++parts) {
    Answer answer = ask(call(process), question);
    for (Line& line : answer.*lines) all.push_back(std::move(line));
    if (answer.next <= question.from) return all;
    question.from = answer.next;
  }
  return all;
}

}  // namespace

Bytes ask_for(const LendingProcess& owner, const std::string& name) {
  Question question;
  question.type = MessageType::kAcquire;
  question.name = name;
  const Call asking = call(owner);
  Bytes message = ask(asking, question).descriptor;
  // Without this word its owner takes the message back when the call ends.
  const ExportTicket made = decode_descriptor(message).ticket;
  asking.send(encode(Heard{made.export_index, made.generation}));
  return message;
}

std::vector<std::string> ask_what_is_published(const LendingProcess& process) {
  return ask_for_list(process, MessageType::kPublishList, &Answer::names);
}

std::vector<Holder> ask_who_holds(const LendingProcess& process) {
  return ask_for_list(process, MessageType::kHolders, &Answer::holders);
}

Reaped ask_to_reap(const LendingProcess& process, bool force) {
  Question question;
  question.type = MessageType::kReap;
  question.force = force;
  return ask(call(process), question).reaped;
}

std::vector<LendingProcess> list_processes() {
  std::vector<LendingProcess> found;
  for (const RuntimeDirectory& directory : RuntimeDirectory::all_existing()) {
    for (const std::string& socket : producer_sockets(directory)) {
      const auto pid = listener_pid(directory, socket);
      if (pid) found.push_back({*producer_of_socket(socket), directory.path(), *pid});
    }
  }
  return found;
}

}  // namespace limbo
