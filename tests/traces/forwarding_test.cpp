// Forwarding: whose claim may be sent on, and whom the third process waits for.
#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "ipc/timelines.h"
#include "tests/unit/producer_support.h"

namespace limbo {
namespace {

using namespace limbo::testing;

class ForwardTraces : public ProducerTest {
 protected:
  void SetUp() override {
    ProducerTest::SetUp();
    ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, life_line_), 0);
  }
  void TearDown() override {
    for (const int fd : life_line_) ::close(fd);
    ProducerTest::TearDown();
  }
  static ForwardRequest request(std::uint32_t slot, const ExportTicket& held) {
    return forward_request(held, slot);
  }
  protocol::ClaimTarget forward(const PlayedConsumer& asker, const ForwardRequest& request) {
    // (Any descriptor stands for a pidfd here.)
    return producer_->forward(asker.lease(), request, life_line_[1], life_line_[0], 0);
  }

  int life_line_[2] = {-1, -1};
};

using ForwardWithoutNote = ForwardTraces;
using ForwardWithoutOwnPoints = ForwardTraces;
using UpstreamForgotten = ForwardTraces;
using UnheardAnswerKept = ForwardTraces;

// The consumer has let go, which no pass has seen yet; its question was on the way meanwhile.
TEST_F(ForwardWithoutNote, AClaimThatWasReleasedPinsNothingAnew) {
  PlayedConsumer asker(*producer_);
  std::byte* data = allocate();
  const ExportTicket ticket = share(data);
  std::uint32_t slot = 0;
  ASSERT_EQ(asker.claim(ticket, &slot), ClaimVerdict::kStands);
  producer_->collect();
  asker.release_all();
  EXPECT_ERROR((void)forward(asker, request(slot, ticket)), kGone);
  allocator_->free(data);
  producer_->collect();
  EXPECT_EQ(limbo_blocks(), 0) << "a block that nobody holds is pinned";
  EXPECT_EQ(stats().in_flight, 0U);
}

// The forwarder writes, and sends on: whoever opens that comes behind its write.
TEST_F(ForwardWithoutOwnPoints, TheReaderComesBehindTheForwardersWrite) {
  PlayedConsumer asker(*producer_);
  const StreamRef writing{0, sim_->create_stream(0)};
  const StreamRef reading{0, sim_->create_stream(0)};
  std::byte* data = allocate();
  const ExportTicket ticket = share(data);
  std::uint32_t slot = 0;
  ASSERT_EQ(asker.claim(ticket, &slot), ClaimVerdict::kStands);
  {
    Timelines timelines(*sim_, small_tables().timelines,
                        SharedMemory::map_received(
                            "test", ::fcntl(asker.grant().own_timelines_fd, F_DUPFD_CLOEXEC, 0),
                            timelines_bytes(small_tables()), ReceiverMay::kWrite));
    const SimHold write = sim_->hold_stream(writing);
    ForwardRequest ask = request(slot, ticket);
    ask.points[0] = timelines.advance(writing);
    const protocol::ClaimTarget made = forward(asker, ask);
    const OwnOpen own = producer_->open_own(made.export_index, made.generation);
    producer_->wait_own(reading, own);
    const EventHandle read = sim_->create_event(0);
    sim_->record_event(reading, read);
    EXPECT_FALSE(
        eventually([&] { return sim_->query_event(0, read); }, std::chrono::milliseconds(50)))
        << "the reader is early";
    sim_->release_hold(write);
    sim_->synchronize_stream(reading);
    sim_->synchronize_stream(writing);
    sim_->destroy_event(0, read);
    allocator_->unpin(own.block.block);
  }
  asker.release_all();
  allocator_->free(data);
  producer_->collect();
  asker.die();
  producer_->drop_forwarders();
  for (const StreamRef stream : {writing, reading}) sim_->destroy_stream(stream);
}

// One writes and sends on, another one sends on behind that, and the first dies under its write: the
// second's number comes all the same.
TEST_F(UpstreamForgotten, WhoeverWaitsForTheSecondLearnsWhatTheFirstHasNotWritten) {
  PlayedConsumer first(*producer_, 1);
  PlayedConsumer second(*producer_, 2);
  std::byte* data = allocate();
  ExportTicket ticket = share(data);
  for (PlayedConsumer* each : {&first, &second}) {
    std::uint32_t slot = 0;
    ASSERT_EQ(each->claim(ticket, &slot), ClaimVerdict::kStands);
    ForwardRequest ask = request(slot, ticket);
    ask.points[0] = {0, 0, 1};
    const protocol::ClaimTarget made = forward(*each, ask);
    producer_->heard(each->lease(), made);
    ticket.export_index = made.export_index;
    ticket.generation = made.generation;
  }
  const OwnOpen own = producer_->open_own(ticket.export_index, ticket.generation);
  EXPECT_FALSE(ended_early(own));
  EXPECT_TRUE(producer_->complete_waits(first.lease()));
  EXPECT_TRUE(ended_early(own)) << "the first one's write passes for done";
  allocator_->unpin(own.block.block);
  for (PlayedConsumer* each : {&first, &second}) each->release_all();
  allocator_->free(data);
  producer_->collect();
  for (PlayedConsumer* each : {&first, &second}) each->die();
  producer_->drop_forwarders();
}

// It dies between its question and the answer, which nobody else can know of.
TEST_F(UnheardAnswerKept, WhatWasMadeForTheDeadIsWithdrawn) {
  PlayedConsumer asker(*producer_, 1);
  std::byte* data = allocate();
  const ExportTicket ticket = share(data);
  std::uint32_t slot = 0;
  ASSERT_EQ(asker.claim(ticket, &slot), ClaimVerdict::kStands);
  const protocol::ClaimTarget made = forward(asker, request(slot, ticket));
  asker.die();
  EXPECT_EQ(stats().withdrawn, 1U);
  EXPECT_EQ(stats().in_flight, 0U) << "a message that nobody has is waited for";
  allocator_->free(data);
  producer_->collect();
  EXPECT_EQ(limbo_blocks(), 0);
  (void)producer_->withdraw(made.export_index, made.generation);
  producer_->drop_forwarders();
}

// The same by its connection's end alone.
TEST_F(UnheardAnswerKept, WhatWasMadeForOneWhoSaysNothingAnyMoreIsWithdrawn) {
  PlayedConsumer asker(*producer_, 1);
  std::byte* data = allocate();
  const ExportTicket ticket = share(data);
  std::uint32_t slot = 0;
  ASSERT_EQ(asker.claim(ticket, &slot), ClaimVerdict::kStands);
  const protocol::ClaimTarget heard = forward(asker, request(slot, ticket));
  producer_->heard(asker.lease(), heard);
  const protocol::ClaimTarget unheard = forward(asker, request(slot, ticket));
  producer_->hears_no_more(asker.lease());
  EXPECT_EQ(stats().in_flight, 1U);
  for (const protocol::ClaimTarget& made : {heard, unheard}) {
    (void)producer_->withdraw(made.export_index, made.generation);
  }
  asker.release_all();
  allocator_->free(data);
  producer_->collect();
  asker.die();
  producer_->drop_forwarders();
}

}  // namespace
}  // namespace limbo
