// A process that lends and is ending: its consumers go on talking to it, and it calls the device no
// more.
#include <unistd.h>

#include <functional>
#include <map>
#include <stdexcept>
#include <string>

#include "ipc/descriptor.h"
#include "ipc/sharing_service.h"
#include "tests/support/child_process.h"
#include "tests/unit/channel_support.h"
#include "tests/unit/sim_support.h"

namespace limbo::testing {
namespace {

// Says it, and returns when it is dealt with.
void say(const Handshake& reader, const MessageBytes& message) {
  Question question;
  question.type = MessageType::kHolders;
  const bool said = reader.socket.send(message) && reader.socket.send(encode(question));
  Packet answer;
  if (!said || !eventually([&] {
        return receive_packet(reader.socket.get(), answer) == PacketStatus::kPacket;
      })) {
    throw std::runtime_error("It was not heard.");
  }
}

std::uint64_t device_calls(SimDevice& sim) {
  std::uint64_t calls = 0;
  for (std::size_t kind = 0; kind < kCallKinds; ++kind) {
    calls += sim.calls(static_cast<CallKind>(kind));
  }
  return calls;
}

// Lends a block, and nobody is expected any more when the process ends. Then its owner frees it, it is
// used on another stream (as by whoever has opened it here), so that its last unpin records an event,
// and a consumer says the message. Answers how many device calls that made.
LIMBO_CHILD_ROLE(ended_lender) {
  auto& service = static_cast<SharingService&>(process_sharing());
  Allocator& allocator = process_allocator();
  SimDevice& sim = as_sim(process_device());
  void* data = allocator.allocate(4096, {0, nullptr});
  const StreamRef user{0, sim.create_stream(0)};
  const Descriptor sent = decode_descriptor(service.share(data, 4096, {}, {}));
  const Handshake reader =
      shake_hands({sent.producer, sent.directory, sent.socket_name}, random_incarnation());
  const Decline decline{sent.ticket.export_index, sent.ticket.generation};
  say(reader, encode(decline));

  service.end(std::chrono::milliseconds(0));
  allocator.free(data);
  if (!allocator.record_stream(data, user)) throw std::runtime_error("It is no block any more.");
  sim.reset_calls();
  const std::map<std::string, std::function<MessageBytes()>> messages = {
      {"decline", [&] { return encode(decline); }},
      {"row half full", encode_row_half_full},
      {"context lost", encode_context_lost},
      {"bye", encode_bye}};
  say(reader, messages.at(child.argument(0))());
  child.send(std::to_string(device_calls(sim)));
  child.park();
  ::_exit(0);
}

TEST(EndedLending, CallsNoDeviceWhateverItsConsumersSay) {
  for (const char* message : {"decline", "row half full", "context lost", "bye"}) {
    ChildProcess lender("ended_lender", {message});
    EXPECT_EQ(lender.receive(), "0") << message;
    lender.kill();
  }
}

}  // namespace
}  // namespace limbo::testing
