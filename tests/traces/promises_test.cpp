// Promises: who uses one up, and what a withdrawn message still allows.
#include "tests/unit/producer_support.h"

namespace limbo {
namespace {

using namespace limbo::testing;
using std::chrono::milliseconds;

class PromisesTest : public ProducerTest {
 protected:
  ExportTicket promise(const void* data, int consumers) {
    ShareOptions options;
    options.consumers = consumers;
    return producer_->share(data, 4096, options);
  }
};

using CountBelowZero = ProducerTest;
using ClaimsCountedPerOpen = PromisesTest;
using DeclineCountsAgain = PromisesTest;
using WithdrawnStaysClaimable = PromisesTest;

// HELD is stored, the time limit takes the promise back, and only then is the claim noted.
TEST_F(CountBelowZero, AClaimNotedAfterTheTimeLimitTakesNothingOff) {
  PlayedConsumer consumer(*producer_);
  std::byte* data = allocate();
  const ExportTicket ticket = share_for(data, milliseconds(0));
  allocator_->free(data);
  ASSERT_EQ(consumer.claim(ticket), ClaimVerdict::kStands);
  producer_->run_time_limits(Producer::Clock::now() + milliseconds(1));
  ASSERT_EQ(stats().expired, 1U);
  producer_->collect();
  EXPECT_EQ(stats().in_flight, 0U);
  consumer.release(ticket);
  producer_->collect();
  EXPECT_EQ(limbo_blocks(), 0) << "it can never be closed again";
}

// Two processes were promised it. One opens it twice and lets go; the other comes later.
TEST_F(ClaimsCountedPerOpen, OpeningTwiceLeavesTheOthersPromise) {
  PlayedConsumer first(*producer_, 1);
  PlayedConsumer second(*producer_, 2);
  std::byte* data = allocate();
  const ExportTicket ticket = promise(data, 2);
  ASSERT_EQ(first.claim(ticket), ClaimVerdict::kStands);
  ASSERT_EQ(first.claim(ticket), ClaimVerdict::kStands);
  producer_->collect();
  first.release_all();
  allocator_->free(data);
  producer_->collect();
  EXPECT_EQ(stats().in_flight, 1U);
  EXPECT_EQ(second.claim(ticket), ClaimVerdict::kStands) << "its message is gone";
  second.release_all();
}

// Of one process, one thread claims what another could not: that is one process.
TEST_F(DeclineCountsAgain, AClaimAndADeclineOfOneProcessUseUpOnePromise) {
  PlayedConsumer first(*producer_, 1);
  PlayedConsumer second(*producer_, 2);
  std::byte* data = allocate();
  const ExportTicket ticket = promise(data, 2);
  ASSERT_EQ(first.claim(ticket), ClaimVerdict::kStands);
  producer_->collect();
  producer_->decline(first.lease(), ticket.export_index, ticket.generation);
  first.release_all();
  allocator_->free(data);
  producer_->collect();
  EXPECT_EQ(stats().in_flight, 1U);
  EXPECT_EQ(second.claim(ticket), ClaimVerdict::kStands) << "its message is gone";
  second.release_all();
}

TEST_F(WithdrawnStaysClaimable, NobodyNewGetsWhatWasTakenBackThoughSomebodyHoldsIt) {
  PlayedConsumer holder(*producer_, 1);
  PlayedConsumer late(*producer_, 2);
  std::byte* data = allocate();
  const ExportTicket ticket = promise(data, 2);
  ASSERT_EQ(holder.claim(ticket), ClaimVerdict::kStands);
  producer_->collect();
  ASSERT_TRUE(producer_->withdraw(ticket.export_index, ticket.generation));
  EXPECT_EQ(late.claim(ticket), ClaimVerdict::kWithdrawn);
  EXPECT_EQ(stats().in_flight, 0U);
  holder.release_all();
  late.release_all();
  allocator_->free(data);
}

}  // namespace
}  // namespace limbo
