#include "ipc/handshake.h"

#include <string>
#include <utility>

#include "ipc/call.h"
#include "ipc/fail_points.h"
#include "ipc/lease_watch.h"
#include "ipc/ledger_options.h"
#include "ipc/life_line.h"

namespace limbo {
namespace {

constexpr CallWords kSender{.who = "The sender",
                            .cannot = "be reached",
                            .has_ended = "The process that sent this has ended",
                            .while_alive = "Keep the sender alive until its messages are opened.",
                            .names_refuser = true};

// What a message says is believed only as far as this process can follow: it keeps a list of its
// claims.
void check_capacities(const Call& call, const Capacities& theirs) {
  const auto check = [&](const char* option, std::uint32_t value, std::uint32_t most) {
    if (value <= most) return;
    call.fail("its welcome says that its " + std::string(option) + " is " + std::to_string(value) +
              ", and no sender's is over " + std::to_string(most));
  };
  check("ledger_pieces", theirs.pieces, kMostCapacities.pieces);
  check("ledger_claims", theirs.claims, kMostCapacities.claims);
  check("ledger_timelines", theirs.timelines, kMostCapacities.timelines);
}

}  // namespace

Handshake shake_hands(const ProducerAddress& address, const Incarnation& own,
                      std::chrono::milliseconds deadline,
                      std::shared_ptr<PromisedMessages> promised) {
  Call call(address, deadline, kSender);
  Hello hello;
  hello.incarnation = own;
  const int descriptors[Hello::kDescriptors] = {life_line::far_end()};  // first: it may be made now
  hello.life_line_flags = life_line::flags();
  LIMBO_FAIL_POINT("connect.before_hello");
  call.send(encode(hello), descriptors);
  LIMBO_FAIL_POINT("connect.after_hello");
  call.connection().has_said_hello();
  // Before the answer: one that cannot be taken ends the connection, and the promise with it.
  call.connection().owe(std::move(promised));

  MessageType type{};
  Packet packet = call.answer(type);
  Welcome welcome;
  if (type != MessageType::kWelcome || !decode(packet.bytes, welcome)) {
    call.fail("its answer is not a welcome");
  }
  check_capacities(call, welcome.capacities);
  if (welcome.incarnation != address.incarnation) call.fail("somebody else listens there");
  if (!is_life_line(packet.descriptors[3].get())) call.fail("its life line is none");
  Handshake result;
  result.pid = call.pid();
  result.pidfd = call.take_pidfd();
  result.socket = call.take_connection();
  result.lease_number = welcome.lease_number;
  result.life_line_flags = welcome.life_line_flags;
  result.told_life_line_flags = hello.life_line_flags;
  result.capacities = welcome.capacities;
  result.ledger = std::move(packet.descriptors[0]);
  result.timelines = std::move(packet.descriptors[1]);
  result.row = std::move(packet.descriptors[2]);
  result.life_line = std::move(packet.descriptors[3]);
  result.own_timelines = std::move(packet.descriptors[4]);
  LIMBO_FAIL_POINT("connect.after_welcome");
  return result;
}

}  // namespace limbo
