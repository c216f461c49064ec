// Forwarding, the owner's part: who may send on, what the new export says, how long it is kept whom
// to wait for.
#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "ipc/timelines.h"
#include "tests/unit/producer_support.h"

namespace limbo {
namespace {

using namespace limbo::testing;
using std::chrono::milliseconds;

class ProducerForward : public ProducerTest {
 protected:
  void SetUp() override {
    ProducerTest::SetUp();
    ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, life_line_), 0);
    data_ = allocate();
    ticket_ = share(data_);
  }
  void TearDown() override {
    for (const int fd : life_line_) ::close(fd);
    ProducerTest::TearDown();
  }

  // The claim's slot.
  std::uint32_t claim(PlayedConsumer& consumer, const ExportTicket& ticket) {
    std::uint32_t slot = 0;
    EXPECT_EQ(consumer.claim(ticket, &slot), ClaimVerdict::kStands);
    return slot;
  }
  static ForwardRequest request(std::uint32_t slot, const ExportTicket& held) {
    ForwardRequest request = forward_request(held, slot);
    request.points[0] = {0, 3, 5};
    return request;
  }
  // (Any descriptor stands for a pidfd here.)
  ExportTicket forward(PlayedConsumer& consumer, const ForwardRequest& request) {
    const auto made =
        producer_->forward(consumer.lease(), request, life_line_[1], life_line_[0], 0);
    ExportTicket ticket = ticket_;
    ticket.export_index = made.export_index;
    ticket.generation = made.generation;
    ticket.offset_bytes = request.offset_bytes;
    ticket.size_bytes = request.size_bytes;
    producer_->check_invariants();
    return ticket;
  }
  void let_go() {
    allocator_->free(data_);
    producer_->collect();
  }

  int life_line_[2] = {-1, -1};
  std::byte* data_ = nullptr;
  ExportTicket ticket_;
};

TEST_F(ProducerForward, TheNewExportIsOfTheSameBlockAndNamesTheAskersTimelines) {
  PlayedConsumer asker(*producer_, 1);
  PlayedConsumer third(*producer_, 2);
  const std::uint32_t slot = claim(asker, ticket_);
  ForwardRequest ask = request(slot, ticket_);
  ask.offset_bytes += 512;
  ask.size_bytes = 1024;
  ask.points[1] = {0, 4, 6};
  const ExportTicket on = forward(asker, ask);
  EXPECT_NE(on.export_index, ticket_.export_index);
  EXPECT_EQ(stats().forwards, 1U);
  EXPECT_EQ(stats().forwarders, 1U);
  EXPECT_EQ(stats().in_flight, 1U);  // the first one's claim was noted
  ASSERT_EQ(third.claim(on), ClaimVerdict::kStands);
  const protocol::ExportFields fields = third.fields(on);
  const std::uint64_t owner = std::uint64_t{asker.lease() + 1} << 32;
  EXPECT_EQ(at(fields, protocol::ExportField::kPointWhere0), owner | 3);
  EXPECT_EQ(at(fields, protocol::ExportField::kPointNumber0), 5U);
  EXPECT_EQ(at(fields, protocol::ExportField::kPointWhere1), owner | 4);
  EXPECT_EQ(at(fields, protocol::ExportField::kPointNumber1), 6U);
  EXPECT_EQ(at(fields, protocol::ExportField::kFirstPiece), ticket_.piece_index);
  EXPECT_EQ(at(fields, protocol::ExportField::kOffsetBytes), ticket_.offset_bytes + 512);
  EXPECT_EQ(at(fields, protocol::ExportField::kSizeBytes), 1024U);
  asker.release_all();
  let_go();
  EXPECT_EQ(limbo_blocks(), 1);  // the third holds it
  third.release_all();
  producer_->collect();
  EXPECT_EQ(limbo_blocks(), 0);
}

TEST_F(ProducerForward, OnlyWhoIsKnownToHoldItMaySendItOn) {
  PlayedConsumer asker(*producer_, 1);
  PlayedConsumer other(*producer_, 2);
  const std::uint32_t slot = claim(asker, ticket_);
  EXPECT_ERROR((void)forward(other, request(slot, ticket_)), kGone);
  EXPECT_ERROR((void)forward(asker, request(slot + 1, ticket_)), kGone);
  EXPECT_ERROR((void)forward(asker, request(1'000'000, ticket_)), kGone);
  ExportTicket wrong = ticket_;
  ++wrong.generation;
  EXPECT_ERROR((void)forward(asker, request(slot, wrong)), kGone);
  wrong = ticket_;
  wrong.export_index = 1'000'000;
  EXPECT_ERROR((void)forward(asker, request(slot, wrong)), kGone);
  EXPECT_EQ(stats().forwards, 0U);
  // Released, and not noted by any pass yet.
  asker.release_all();
  EXPECT_ERROR((void)forward(asker, request(slot, ticket_)), kGone);
  const std::uint32_t next = claim(asker, ticket_);
  asker.die();
  EXPECT_ERROR((void)producer_->forward(asker.lease(), request(next, ticket_), life_line_[1],
                                        life_line_[0], 0),
               kGone);
  let_go();
}

TEST_F(ProducerForward, WhatWasTakenBackOrHasExpiredIsNotSentOn) {
  PlayedConsumer asker(*producer_, 1);
  const std::uint32_t slot = claim(asker, ticket_);
  ASSERT_TRUE(producer_->withdraw(ticket_.export_index, ticket_.generation));
  EXPECT_ERROR((void)forward(asker, request(slot, ticket_)), kWithdrawn);
  ShareOptions options;
  options.consumers = 2;
  options.time_limit = milliseconds(0);
  const ExportTicket expiring = producer_->share(data_, 4096, options);
  const std::uint32_t another = claim(asker, expiring);
  allocator_->free(data_);
  producer_->run_time_limits(Producer::Clock::now() + milliseconds(1));
  EXPECT_ERROR((void)forward(asker, request(another, expiring)), kExpired);
  asker.release_all();
  producer_->collect();
}

TEST_F(ProducerForward, BadRequestsAreRefusedAndChangeNothing) {
  PlayedConsumer asker(*producer_, 1);
  const std::uint32_t slot = claim(asker, ticket_);
  const auto refused = [&](const std::function<void(ForwardRequest&)>& change) {
    ForwardRequest ask = request(slot, ticket_);
    change(ask);
    EXPECT_ERROR((void)forward(asker, ask), kBadArgument);
  };
  refused([](ForwardRequest& ask) { ask.size_bytes = 0; });
  refused([](ForwardRequest& ask) { ask.size_bytes = 4097; });
  refused([](ForwardRequest& ask) { ask.size_bytes = ~std::uint64_t{0}; });
  refused([](ForwardRequest& ask) { ask.offset_bytes += 1; });
  refused([](ForwardRequest& ask) { ask.offset_bytes = ~std::uint64_t{0}; });
  refused([](ForwardRequest& ask) { ask.consumers = 0; });
  refused([](ForwardRequest& ask) { ask.consumers = 1'000'001; });
  refused([](ForwardRequest& ask) { ask.time_limit = milliseconds(-1); });
  refused([](ForwardRequest& ask) { ask.points[1] = {0, small_tables().timelines, 1}; });
  EXPECT_EQ(stats().forwards, 0U);
  EXPECT_EQ(stats().forwarders, 0U);
  asker.release_all();
  let_go();
}

// Of a block that its owner has freed, the time runs from the send on.
TEST_F(ProducerForward, AfterTheOwnersFreeTheTimeLimitRunsAtOnce) {
  PlayedConsumer asker(*producer_, 1);
  PlayedConsumer third(*producer_, 2);
  const std::uint32_t slot = claim(asker, ticket_);
  let_go();
  ForwardRequest ask = request(slot, ticket_);
  ask.time_limit = milliseconds(0);
  const ExportTicket on = forward(asker, ask);
  asker.release_all();
  producer_->run_time_limits(Producer::Clock::now() + milliseconds(1));
  EXPECT_EQ(stats().expired, 1U);
  EXPECT_EQ(third.claim(on), ClaimVerdict::kExpired);
  producer_->collect();
  EXPECT_EQ(limbo_blocks(), 0);
}

// Whoever sends on decides for how long at most as far as the owner has agreed to; the owner's memory
// comes back then, whatever has become of those who sent it on.
TEST_F(ProducerForward, NobodySendsOnForLongerThanTheOwnerHasSentFor) {
  const ExportTicket limited = share_for(data_, milliseconds(100));
  PlayedConsumer asker(*producer_, 1);
  PlayedConsumer next(*producer_, 2);
  const auto for_ten_years = [&](PlayedConsumer& by, const ExportTicket& held) {
    ForwardRequest ask = request(claim(by, held), held);
    ask.time_limit = std::chrono::hours(24 * 365 * 10);
    const ExportTicket on = forward(by, ask);
    producer_->heard(by.lease(), {on.export_index, on.generation});
    return on;
  };
  const ExportTicket on = for_ten_years(asker, limited);
  const ExportTicket further = for_ten_years(next, on);
  ForwardRequest shorter = request(claim(asker, limited), limited);
  shorter.time_limit = milliseconds(0);
  const ExportTicket shortly = forward(asker, shorter);
  producer_->heard(asker.lease(), {shortly.export_index, shortly.generation});
  ASSERT_TRUE(producer_->withdraw(ticket_.export_index, ticket_.generation));
  let_go();
  const auto freed = Producer::Clock::now();
  for (PlayedConsumer* consumer : {&asker, &next}) consumer->die();
  producer_->run_time_limits(freed);
  EXPECT_EQ(stats().expired, 1U);
  PlayedConsumer late(*producer_, 3);
  EXPECT_EQ(late.claim(shortly), ClaimVerdict::kExpired);
  EXPECT_GT(limbo_blocks(), 0);
  producer_->run_time_limits(freed + milliseconds(100));
  EXPECT_EQ(late.claim(further), ClaimVerdict::kExpired);
  producer_->collect();
  EXPECT_EQ(limbo_blocks(), 0);
}

TEST_F(ProducerForward, AForwardThatFailsBehindItsPinUndoesItAfterTheUnlock) {
  PlayedConsumer asker(*producer_, 1);
  const std::uint32_t slot = claim(asker, ticket_);
  set_fail_points("forward.after_pin=error");
  EXPECT_ERROR((void)forward(asker, request(slot, ticket_)), kInternal);
  set_fail_points("");
  producer_->check_invariants();
  EXPECT_EQ(stats().exports_open, 1U);
  asker.release_all();
  let_go();
  EXPECT_EQ(limbo_blocks(), 0);
}

TEST_F(ProducerForward, AFullTableIsSaidAndNothingIsPinned) {
  PlayedConsumer asker(*producer_, 1);
  const std::uint32_t slot = claim(asker, ticket_);
  std::vector<ExportTicket> made;
  made.push_back(forward(asker, request(slot, ticket_)));
  std::vector<ExportTicket> own;
  while (stats().exports_open < small_tables().exports) own.push_back(share(data_));
  EXPECT_ERROR((void)forward(asker, request(slot, ticket_)), kLedgerFull);
  producer_->check_invariants();
  for (const ExportTicket& ticket : own) {
    EXPECT_TRUE(producer_->withdraw(ticket.export_index, ticket.generation));
  }
  for (const ExportTicket& ticket : made) {
    producer_->take_back(asker.lease(), ticket.export_index, ticket.generation);
  }
  EXPECT_EQ(stats().in_flight, 0U);
  asker.release_all();
  let_go();
}

TEST_F(ProducerForward, OnlyTheForwarderTakesItsMessageBack) {
  PlayedConsumer asker(*producer_, 1);
  PlayedConsumer third(*producer_, 2);
  const ExportTicket on = forward(asker, request(claim(asker, ticket_), ticket_));
  producer_->take_back(third.lease(), on.export_index, on.generation);
  producer_->take_back(asker.lease(), ticket_.export_index, ticket_.generation);
  producer_->take_back(asker.lease(), on.export_index, on.generation + 1);
  producer_->take_back(asker.lease(), 1'000'000, 1);
  EXPECT_EQ(stats().withdrawn, 0U);
  producer_->take_back(asker.lease(), on.export_index, on.generation);
  EXPECT_EQ(stats().withdrawn, 1U);
  EXPECT_EQ(third.claim(on), ClaimVerdict::kWithdrawn);
  asker.release_all();
  let_go();
}

// Nobody else can know of what the forwarder has not heard of itself.
TEST_F(ProducerForward, WhatAForwarderHasNotHeardOfEndsWithIt) {
  PlayedConsumer asker(*producer_, 1);
  PlayedConsumer third(*producer_, 2);
  const std::uint32_t slot = claim(asker, ticket_);
  const ExportTicket heard = forward(asker, request(slot, ticket_));
  const ExportTicket unheard = forward(asker, request(slot, ticket_));
  producer_->heard(third.lease(), {unheard.export_index, unheard.generation});
  producer_->heard(asker.lease(), {unheard.export_index, unheard.generation + 1});
  producer_->heard(asker.lease(), {1'000'000, 1});
  producer_->heard(asker.lease(), {heard.export_index, heard.generation});
  const ExportTicket taken_back = forward(asker, request(slot, ticket_));
  producer_->take_back(asker.lease(), taken_back.export_index, taken_back.generation);
  EXPECT_EQ(stats().withdrawn, 1U);
  asker.die();
  EXPECT_EQ(stats().withdrawn, 2U);
  EXPECT_EQ(third.claim(unheard), ClaimVerdict::kWithdrawn);
  EXPECT_EQ(third.claim(heard), ClaimVerdict::kStands);
  third.release_all();
  let_go();
}

// The lease is over, and its GPU may still write: it is completed for as long as that is so.
TEST_F(ProducerForward, AForwarderThatWasEndedByForceIsKeptUntilItIsQuiet) {
  PlayedConsumer asker(*producer_, 1);
  const ExportTicket on = forward(asker, request(claim(asker, ticket_), ticket_));
  producer_->heard(asker.lease(), {on.export_index, on.generation});
  producer_->take_back(asker.lease(), on.export_index, on.generation);
  const std::uint32_t number = asker.lease();
  producer_->lease_gone(number, "its GPU work may still run");
  producer_->lease_forced(number);
  EXPECT_EQ(stats().leases_swept, 1U);
  let_go();
  EXPECT_EQ(limbo_blocks(), 0);
  EXPECT_FALSE(producer_->has_forwarders_to_drop());
  EXPECT_TRUE(producer_->complete_waits(number));
  producer_->lease_quiet(number);
  EXPECT_EQ(stats().leases_swept, 1U);
  EXPECT_TRUE(producer_->has_forwarders_to_drop());
  producer_->drop_forwarders();
  EXPECT_FALSE(producer_->complete_waits(number));
}

// Where a device cannot be waited for its streams may look at the words still.
TEST_F(ProducerForward, AForwarderIsKeptWhileTheDeviceCannotBeWaitedFor) {
  PlayedConsumer asker(*producer_, 1);
  const ExportTicket on = forward(asker, request(claim(asker, ticket_), ticket_));
  const std::uint32_t number = asker.lease();
  producer_->heard(number, {on.export_index, on.generation});
  producer_->forwarder_files(number).timelines->wait({0, nullptr}, 3, 5);
  producer_->take_back(number, on.export_index, on.generation);
  producer_->lease_gone(number, "its GPU work may still run");
  producer_->lease_forced(number);
  let_go();
  EXPECT_TRUE(producer_->complete_waits(number));
  producer_->lease_quiet(number);
  const std::uint64_t before = sim_->faults().calls(CallKind::kUnregister);
  sim_->faults().add("synchronize:1=fail");
  producer_->drop_forwarders();
  EXPECT_TRUE(producer_->has_forwarders_to_drop());
  EXPECT_EQ(sim_->faults().calls(CallKind::kUnregister), before);
  producer_->drop_forwarders();
  EXPECT_FALSE(producer_->has_forwarders_to_drop());
  EXPECT_EQ(sim_->faults().calls(CallKind::kUnregister), before + 1);
}

// What a third process needs is kept after the forwarder's sweep, for as long as an open export
// names it.
TEST_F(ProducerForward, AForwarderIsKeptWhileAnExportNamesIt) {
  PlayedConsumer asker(*producer_, 1);
  PlayedConsumer third(*producer_, 2);
  EXPECT_ERROR((void)producer_->forwarder_files(asker.lease()), kGone);
  const ExportTicket on = forward(asker, request(claim(asker, ticket_), ticket_));
  asker.release_all();
  EXPECT_FALSE(producer_->lease_left(asker.lease()));  // it may be waited for
  const std::uint32_t number = asker.lease();
  producer_->heard(asker.lease(), {on.export_index, on.generation});
  asker.die();
  {
    const ForwarderFiles files = producer_->forwarder_files(number);
    EXPECT_TRUE(files.pidfd.valid());
    EXPECT_TRUE(files.life_line.valid());
    EXPECT_GE(files.timelines->fd(), 0);
  }
  EXPECT_FALSE(producer_->has_forwarders_to_drop());
  producer_->drop_forwarders();
  EXPECT_EQ(stats().forwarders, 1U);
  ASSERT_EQ(third.claim(on), ClaimVerdict::kStands);
  let_go();
  third.release_all();
  producer_->collect();
  EXPECT_TRUE(producer_->has_forwarders_to_drop());
  producer_->drop_forwarders();
  EXPECT_EQ(stats().forwarders, 0U);
  EXPECT_ERROR((void)producer_->forwarder_files(number), kGone);
}

TEST_F(ProducerForward, TheOwnerWaitsForAForwardersNumberAndForNoDeadOnes) {
  PlayedConsumer asker(*producer_, 1);
  const StreamRef working{0, sim_->create_stream(0)};
  const StreamRef reading{0, sim_->create_stream(0)};
  {
    Timelines timelines(*sim_, small_tables().timelines,
                        SharedMemory::map_received(
                            "test", ::fcntl(asker.grant().own_timelines_fd, F_DUPFD_CLOEXEC, 0),
                            timelines_bytes(small_tables()), ReceiverMay::kWrite));
    ForwardRequest ask = request(claim(asker, ticket_), ticket_);
    const SimHold writing = sim_->hold_stream(working);
    ask.points[0] = timelines.advance(working);
    const ExportTicket on = forward(asker, ask);
    const OwnOpen own = producer_->open_own(on.export_index, on.generation);
    EXPECT_EQ(own.points[0].owner, asker.lease() + 1);
    producer_->wait_own(reading, own);
    const EventHandle read = sim_->create_event(0);
    sim_->record_event(reading, read);
    EXPECT_FALSE(eventually([&] { return sim_->query_event(0, read); }, milliseconds(50)));
    // Its process ends under its own write: the wait is completed without it.
    EXPECT_FALSE(ended_early(own));
    EXPECT_TRUE(producer_->complete_waits(asker.lease()));
    sim_->synchronize_stream(reading);
    EXPECT_TRUE(sim_->query_event(0, read));
    EXPECT_TRUE(ended_early(own));
    sim_->destroy_event(0, read);
    sim_->release_hold(writing);
    sim_->synchronize_stream(working);  // a late write sets it back
    EXPECT_TRUE(producer_->complete_waits(asker.lease()));
    EXPECT_TRUE(ended_early(own));  // it came too late for who was let pass
    allocator_->unpin(own.block.block);
  }
  asker.die();
  let_go();
  producer_->collect();
  producer_->drop_forwarders();
  EXPECT_EQ(stats().forwarders, 0U);
  for (const StreamRef stream : {working, reading}) sim_->destroy_stream(stream);
}

// A block of this process that was opened here is sent on though its owner has freed it.
TEST_F(ProducerForward, AReceivedBlockOfThisProcessIsSentOnAfterTheFree) {
  PlayedConsumer third(*producer_, 2);
  const StreamRef received_on{0, sim_->create_stream(0)};
  const StreamRef current{0, sim_->create_stream(0)};
  const OwnOpen own = producer_->open_own(ticket_.export_index, ticket_.generation);
  let_go();
  EXPECT_ERROR((void)share(data_), kNotLendable);
  producer_->pin_own(own);
  ShareOptions options;
  options.current_stream = current;
  const SimHold receiving = sim_->hold_stream(received_on);
  const ExportTicket on = producer_->share_received(own, data_, 4096, options, received_on);
  EXPECT_NE(on.points[1].number, 0U);
  producer_->check_invariants();
  allocator_->unpin(own.block.block);
  // Behind three streams, with two numbers: none of them is forgotten.
  const StreamRef reader{0, sim_->create_stream(0)};
  for (const TimelinePoint& point : on.points) producer_->wait_own(reader, point);
  const EventHandle read = sim_->create_event(0);
  sim_->record_event(reader, read);
  EXPECT_FALSE(eventually([&] { return sim_->query_event(0, read); }, milliseconds(50)));
  sim_->release_hold(receiving);
  sim_->synchronize_stream(reader);
  sim_->destroy_event(0, read);
  EXPECT_EQ(limbo_blocks(), 1);
  ASSERT_EQ(third.claim(on), ClaimVerdict::kStands);
  third.release_all();
  producer_->collect();
  EXPECT_EQ(limbo_blocks(), 0);
  sim_->wait_until_idle();
  for (const StreamRef stream : {received_on, current, reader}) sim_->destroy_stream(stream);
}

}  // namespace
}  // namespace limbo
