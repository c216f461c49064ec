// A send behind three streams: what joins two of them holds up no other send.
#include <list>

#include "ipc/joining_streams.h"
#include "tests/unit/producer_support.h"

namespace limbo {
namespace {

using namespace limbo::testing;
using std::chrono::milliseconds;

// Blocks of this process that were received here: each on a stream of its own, sent on from another.
class SendJoiningStreams : public ProducerTest {
 protected:
  struct Sent {
    std::byte* data = nullptr;
    StreamRef received_on;
    StreamRef current;
    OwnOpen own;
    ExportTicket ticket;
  };
  void TearDown() override {
    release_holds();
    for (const Sent& sent : sent_) {
      producer_->withdraw(sent.ticket.export_index, sent.ticket.generation);
      allocator_->unpin(sent.own.block.block);
      allocator_->free(sent.data);
    }
    sim_->wait_until_idle();
    for (const StreamRef stream : streams_) sim_->destroy_stream(stream);
    ProducerTest::TearDown();
  }
  [[nodiscard]] StreamRef stream() {
    streams_.push_back({0, sim_->create_stream(0)});
    return streams_.back();
  }
  // Its work does not end before release_holds.
  [[nodiscard]] StreamRef blocked_stream() {
    const StreamRef made = stream();
    holds_.push_back(sim_->hold_stream(made));
    return made;
  }
  void release_holds() {
    for (const SimHold& hold : std::exchange(holds_, {})) sim_->release_hold(hold);
  }
  [[nodiscard]] ExportTicket send_on(const Sent& sent) {
    producer_->pin_own(sent.own);
    ShareOptions options;
    options.current_stream = sent.current;
    return producer_->share_received(sent.own, sent.data, 4096, options, sent.received_on);
  }
  [[nodiscard]] Sent receive(StreamRef received_on, StreamRef current) {
    Sent sent;
    sent.data = allocate();
    sent.received_on = received_on;
    sent.current = current;
    const ExportTicket ticket = share(sent.data);
    sent.own = producer_->open_own(ticket.export_index, ticket.generation);
    return sent;
  }
  Sent& send(StreamRef received_on, StreamRef current) {
    Sent sent = receive(received_on, current);
    sent.ticket = send_on(sent);
    return sent_.emplace_back(sent);
  }
  // Whether a stream that waits for the message has got behind it.
  [[nodiscard]] bool arrives(const ExportTicket& ticket, milliseconds at_most = kPatience) {
    const StreamRef reader = stream();
    for (const TimelinePoint& point : ticket.points) producer_->wait_own(reader, point);
    const EventHandle read = sim_->create_event(0);
    sim_->record_event(reader, read);
    const bool read_it = eventually([&] { return sim_->query_event(0, read); }, at_most);
    sim_->destroy_event(0, read);
    return read_it;
  }

  std::list<Sent> sent_;
  std::vector<SimHold> holds_;
  std::vector<StreamRef> streams_;
};

// What the first waits for comes only when the second has been seen, as it does where another process
// answers the second: nothing of the second's may wait for the first.
TEST_F(SendJoiningStreams, ASendBehindBlockedWorkHoldsUpNoOther) {
  const StreamRef blocked = blocked_stream();
  const Sent& first = send(blocked, stream());
  const Sent& second = send(stream(), stream());
  EXPECT_TRUE(arrives(second.ticket));
  EXPECT_FALSE(arrives(first.ticket, milliseconds(50)));
  release_holds();
  EXPECT_TRUE(arrives(first.ticket));
}

// Behind the same streams they come one after the other anyway, and however many there are need one
// stream more; another stream that has ended is taken again.
TEST_F(SendJoiningStreams, SendsBehindTheSameStreamsShareOne) {
  const StreamRef blocked = blocked_stream();
  const StreamRef current = stream();
  const std::uint64_t before = sim_->calls(CallKind::kCreateStream);
  for (int i = 0; i < 20; ++i) (void)send(blocked, current);
  EXPECT_EQ(sim_->calls(CallKind::kCreateStream), before + 1);
  release_holds();
  EXPECT_TRUE(arrives(sent_.back().ticket));
  sim_->wait_until_idle();
  const std::uint64_t between = sim_->calls(CallKind::kCreateStream);
  const Sent& later = send(current, blocked);
  EXPECT_EQ(sim_->calls(CallKind::kCreateStream), between);
  EXPECT_TRUE(arrives(later.ticket));
}

// Streams that were joined before are no reason to wait for more than the two of this send.
TEST_F(SendJoiningStreams, AnotherStreamOfAPairMakesAnotherJoin) {
  const StreamRef blocked = blocked_stream();
  const StreamRef current = stream();
  const Sent& first = send(blocked, current);
  const Sent& second = send(stream(), current);
  EXPECT_TRUE(arrives(second.ticket));
  EXPECT_FALSE(arrives(first.ticket, milliseconds(50)));
  release_holds();
  EXPECT_TRUE(arrives(first.ticket));
}

// The bound: an error that says what to do, nothing pinned and nothing open behind it, and all well
// when the work has ended.
TEST_F(SendJoiningStreams, ThereAreOnlySoMany) {
  make_producer({.exports = 1024, .pieces = 16, .claims = 1024, .timelines = 1024});
  const StreamRef current = stream();
  for (std::size_t i = 0; i < JoiningStreams::kMost; ++i) (void)send(blocked_stream(), current);
  const std::uint64_t open = stats().exports_open;
  const StreamRef other = stream();
  const Sent more = receive(other, current);
  try {
    (void)send_on(more);
    ADD_FAILURE() << "was sent";
  } catch (const Error& failure) {
    EXPECT_EQ(failure.code(), ErrorCode::kLedgerFull);
    EXPECT_NE(std::string(failure.what()).find("the stream that received"), std::string::npos)
        << failure.what();
  }
  EXPECT_EQ(stats().exports_open, open + 1);  // that of the message itself
  producer_->check_invariants();
  release_holds();
  sim_->wait_until_idle();
  sent_.push_back(more);
  sent_.back().ticket = send_on(more);
  EXPECT_TRUE(arrives(sent_.back().ticket));
}

// A call that fails half-way: what it may have enqueued is waited for by nobody else.
TEST_F(SendJoiningStreams, AFailedJoinHoldsUpNoOther) {
  const StreamRef blocked = blocked_stream();
  const StreamRef current = stream();
  const Sent first = receive(blocked, current);
  sim_->faults().add("wait_word:2=fail");
  EXPECT_ERROR((void)send_on(first), kDeviceError);
  producer_->check_invariants();
  const Sent& second = send(stream(), stream());
  EXPECT_TRUE(arrives(second.ticket));
  release_holds();
  sent_.push_back(first);
  sent_.back().ticket = send_on(first);
  EXPECT_TRUE(arrives(sent_.back().ticket));
}

}  // namespace
}  // namespace limbo
