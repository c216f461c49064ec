// Messages that nobody opens: time limits and withdrawals.
#include <thread>

#include "ipc/fail_point_hooks.h"
#include "tests/unit/producer_support.h"

namespace limbo {
namespace {

using namespace limbo::testing;
using protocol::ExportState;
using std::chrono::milliseconds;
using std::chrono::seconds;

class ProducerTimeLimits : public ProducerTest {};

TEST_F(ProducerTimeLimits, TimeCountsFromTheLaterOfSendAndFree) {
  std::byte* data = allocate();
  const ExportTicket ticket = share_for(data, seconds(100));
  EXPECT_FALSE(producer_->next_deadline().has_value());  // not freed yet
  producer_->run_time_limits(Producer::Clock::now() + seconds(1000));
  EXPECT_EQ(word(ticket).state, ExportState::kOpen);
  const auto before = Producer::Clock::now();
  allocator_->free(data);
  const auto deadline = producer_->next_deadline();
  ASSERT_TRUE(deadline.has_value());
  EXPECT_GE(*deadline, before + seconds(100));
  producer_->run_time_limits(*deadline - milliseconds(1));
  EXPECT_EQ(word(ticket).state, ExportState::kOpen);
  producer_->run_time_limits(*deadline);
  EXPECT_EQ(word(ticket).state, ExportState::kFree);
  EXPECT_EQ(limbo_blocks(), 0);
  EXPECT_FALSE(producer_->next_deadline().has_value());
  EXPECT_EQ(stats().expired, 1U);
  PlayedConsumer late(*producer_);
  EXPECT_EQ(late.claim(ticket), ClaimVerdict::kExpired);
}

// The free came first, and the send stood behind a stream that took no entries.
TEST_F(ProducerTimeLimits, TimeCountsFromASlowSend) {
  std::byte* data = allocate();
  set_fail_points("share.after_enqueue=delay:300");
  ExportTicket ticket;
  std::thread sender([&] { ticket = share_for(data, milliseconds(200)); });
  ASSERT_TRUE(eventually([&] { return fail_point_passed("share.after_enqueue") == 1; }));
  allocator_->free(data);
  EXPECT_TRUE(producer_->next_deadline().has_value());
  const auto before_the_send = Producer::Clock::now();
  sender.join();
  set_fail_points("");
  producer_->run_time_limits(before_the_send + milliseconds(200));
  EXPECT_EQ(word(ticket).state, ExportState::kOpen);
  producer_->run_time_limits(Producer::Clock::now() + milliseconds(200));
  EXPECT_EQ(word(ticket).state, ExportState::kFree);
  EXPECT_EQ(stats().expired, 1U);
}

TEST_F(ProducerTimeLimits, EarliestDeadlineComesFirstWhateverTheOrderOfSends) {
  PlayedConsumer consumer(*producer_);
  std::vector<std::byte*> blocks;
  std::vector<ExportTicket> tickets;
  const int limits_s[] = {50, 10, 40, 20, 30, 60, 5};
  for (const int limit : limits_s) {
    blocks.push_back(allocate());
    tickets.push_back(share_for(blocks.back(), seconds(limit)));
  }
  for (std::byte* block : blocks) allocator_->free(block);
  const auto start = Producer::Clock::now();
  EXPECT_LT(*producer_->next_deadline(), start + seconds(6));
  // The one of 10 s is claimed: it has no deadline any more.
  ASSERT_EQ(consumer.claim(tickets[1]), ClaimVerdict::kStands);
  producer_->collect();
  producer_->check_invariants();
  for (const int expected : {5, 20, 30, 40, 50, 60}) {
    const auto deadline = *producer_->next_deadline();
    EXPECT_LE(deadline, start + seconds(expected) + seconds(1)) << expected;
    EXPECT_GE(deadline, start + seconds(expected) - seconds(1)) << expected;
    producer_->run_time_limits(deadline);
    producer_->check_invariants();
  }
  EXPECT_FALSE(producer_->next_deadline().has_value());
  EXPECT_EQ(stats().expired, 6U);
  consumer.release_all();
}

// Who looks at the time takes over what was let go, and closes nothing where nothing is out of time.
// The next collect closes it, though no dirty word and no free tells of it any more.
TEST_F(ProducerTimeLimits, WhatIsLetGoBeforeALookAtTheTimeIsClosedByTheNextCollect) {
  for (const bool runs_limits : {false, true}) {
    std::byte* data = allocate();
    const ExportTicket ticket = share(data);
    const OwnOpen own = producer_->open_own(ticket.export_index, ticket.generation);
    allocator_->unpin(own.block.block);
    producer_->collect();
    allocator_->free(data);
    if (runs_limits) producer_->run_time_limits(Producer::Clock::now() + seconds(1000));
    EXPECT_FALSE(producer_->next_deadline().has_value());
    producer_->check_invariants();
    EXPECT_EQ(word(ticket).state, ExportState::kOpen);
    EXPECT_TRUE(producer_->collect());
    EXPECT_EQ(word(ticket).state, ExportState::kFree);
    EXPECT_EQ(limbo_blocks(), 0);
  }
}

// Trace 2, and the negative control of the time limit: HELD ones are never touched.
TEST_F(ProducerTimeLimits, TimeLimitNeverTouchesWhatIsHeld) {
  PlayedConsumer consumer(*producer_);
  std::byte* noted = allocate();
  std::byte* unnoted = allocate();
  const ExportTicket one = share_for(noted, milliseconds(0));
  const ExportTicket two = share_for(unnoted, milliseconds(0));
  ASSERT_EQ(consumer.claim(one), ClaimVerdict::kStands);
  producer_->collect();
  ASSERT_EQ(consumer.claim(two), ClaimVerdict::kStands);  // HELD is stored, and not noted
  allocator_->free(noted);
  allocator_->free(unnoted);
  for (int i = 0; i < 3; ++i) {
    producer_->run_time_limits(Producer::Clock::now() + seconds(1000));
    producer_->collect();
    producer_->check_invariants();
    EXPECT_EQ(limbo_blocks(), 2);
  }
  EXPECT_EQ(word(one).state, ExportState::kOpen);
  EXPECT_EQ(word(two).state, ExportState::kDraining);  // holders keep it
  EXPECT_EQ(stats().in_flight, 0U);
  consumer.release_all();
  EXPECT_TRUE(producer_->collect());
  EXPECT_EQ(limbo_blocks(), 0);
}

// Trace 5: withdrawn while someone holds it: the holder keeps it, nobody else gets it.
TEST_F(ProducerTimeLimits, WithdrawnWithAHolder) {
  PlayedConsumer holder(*producer_);
  PlayedConsumer other(*producer_);
  std::byte* data = allocate();
  const ExportTicket ticket = share(data);
  ASSERT_EQ(holder.claim(ticket), ClaimVerdict::kStands);
  EXPECT_TRUE(producer_->withdraw(ticket.export_index, ticket.generation));
  EXPECT_EQ(word(ticket).state, ExportState::kDraining);
  EXPECT_EQ(other.claim(ticket), ClaimVerdict::kWithdrawn);
  EXPECT_FALSE(producer_->withdraw(ticket.export_index, ticket.generation));
  allocator_->free(data);
  producer_->collect();
  EXPECT_EQ(limbo_blocks(), 1);
  EXPECT_EQ(other.claim(ticket), ClaimVerdict::kWithdrawn);
  holder.release(ticket);
  EXPECT_TRUE(producer_->collect());
  EXPECT_EQ(limbo_blocks(), 0);
  EXPECT_EQ(other.claim(ticket), ClaimVerdict::kWithdrawn);  // the reason stays
  EXPECT_EQ(stats().withdrawn, 1U);
}

TEST_F(ProducerTimeLimits, WithdrawnUnopenedComesBackAtOnce) {
  std::byte* data = allocate();
  const ExportTicket ticket = share(data);
  EXPECT_FALSE(producer_->withdraw(ticket.export_index, ticket.generation + 1));
  EXPECT_FALSE(producer_->withdraw(1 << 30, 1));
  allocator_->free(data);
  EXPECT_TRUE(producer_->withdraw(ticket.export_index, ticket.generation));
  EXPECT_EQ(limbo_blocks(), 0);
  EXPECT_FALSE(producer_->withdraw(ticket.export_index, ticket.generation));
}

TEST_F(ProducerTimeLimits, ReasonOfAnOldMessageDoesNotOutliveTheSlotsNextOne) {
  PlayedConsumer consumer(*producer_);
  std::byte* data = allocate();
  const ExportTicket old = share(data);
  producer_->withdraw(old.export_index, old.generation);
  allocator_->free(data);
  producer_->collect();
  data = allocate();
  const ExportTicket next = share(data);
  ASSERT_EQ(next.export_index, old.export_index);
  EXPECT_EQ(consumer.claim(old), ClaimVerdict::kGone);
  EXPECT_EQ(consumer.claim(next), ClaimVerdict::kStands);
  consumer.release_all();
  allocator_->free(data);
}

}  // namespace
}  // namespace limbo
