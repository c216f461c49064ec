// One message that several processes were promised: who counts, who does not, and when it is over.
#include "ipc/lease_sets.h"

#include "tests/unit/producer_support.h"
#include "tests/unit/short_host_memory.h"

namespace limbo {
namespace {

using namespace limbo::testing;
using std::chrono::milliseconds;

class ProducerPromises : public ProducerTest {
 protected:
  ExportTicket promise(const void* data, int consumers, std::optional<milliseconds> limit = {}) {
    ShareOptions options;
    options.consumers = consumers;
    options.time_limit = limit;
    return producer_->share(data, 4096, options);
  }
  void expect_in_flight(std::uint64_t count) {
    producer_->collect();
    producer_->check_invariants();
    EXPECT_EQ(stats().in_flight, count);
  }
  void expect_over(const ExportTicket& ticket) {
    producer_->collect();
    producer_->check_invariants();
    EXPECT_EQ(word(ticket).state, protocol::ExportState::kFree);
    EXPECT_EQ(limbo_blocks(), 0);
  }
};

TEST_F(ProducerPromises, EachProcessUsesUpOneHoweverOftenItOpens) {
  PlayedConsumer first(*producer_, 1);
  PlayedConsumer second(*producer_, 2);
  std::byte* data = allocate();
  const ExportTicket ticket = promise(data, 2);
  expect_in_flight(2);
  for (int time = 0; time < 3; ++time) EXPECT_EQ(first.claim(ticket), ClaimVerdict::kStands);
  expect_in_flight(1);
  EXPECT_EQ(stats().held_claims, 3U);
  first.release_all();
  expect_in_flight(1);
  EXPECT_EQ(first.claim(ticket), ClaimVerdict::kStands);
  expect_in_flight(1);
  first.release_all();
  allocator_->free(data);
  expect_in_flight(1);  // nobody holds it, and somebody is expected
  EXPECT_EQ(limbo_blocks(), 1);
  EXPECT_EQ(second.claim(ticket), ClaimVerdict::kStands);
  expect_in_flight(0);
  EXPECT_EQ(limbo_blocks(), 1);
  second.release_all();
  expect_over(ticket);
  EXPECT_EQ(first.claim(ticket), ClaimVerdict::kGone);
}

// While the owner holds on, more may open it than were promised, and nothing goes below zero.
TEST_F(ProducerPromises, UninvitedReadersTakeNothingOff) {
  std::byte* data = allocate();
  const ExportTicket ticket = promise(data, 2);
  std::vector<std::unique_ptr<PlayedConsumer>> consumers;
  for (int pid = 1; pid <= 5; ++pid) {
    consumers.push_back(std::make_unique<PlayedConsumer>(*producer_, pid));
    EXPECT_EQ(consumers.back()->claim(ticket), ClaimVerdict::kStands);
    expect_in_flight(static_cast<std::uint64_t>(std::max(0, 2 - pid)));
  }
  allocator_->free(data);
  for (const auto& consumer : consumers) {
    producer_->collect();
    EXPECT_EQ(limbo_blocks(), 1);
    consumer->release_all();
  }
  expect_over(ticket);
}

TEST_F(ProducerPromises, TheOwnerCountsAsOneProcess) {
  PlayedConsumer consumer(*producer_);
  std::byte* data = allocate();
  const ExportTicket ticket = promise(data, 3);
  for (int time = 0; time < 2; ++time) {
    const OwnOpen own = producer_->open_own(ticket.export_index, ticket.generation);
    expect_in_flight(2);
    allocator_->unpin(own.block.block);
  }
  EXPECT_EQ(consumer.claim(ticket), ClaimVerdict::kStands);
  expect_in_flight(1);
  consumer.release_all();
  allocator_->free(data);
  expect_in_flight(1);
  EXPECT_EQ(limbo_blocks(), 1);
  EXPECT_TRUE(producer_->withdraw(ticket.export_index, ticket.generation));
  expect_over(ticket);
}

// A claim seen by a pass, one released before any pass, one swept, and a decline: each counts once
// for its process, and a second event of the same process does not.
TEST_F(ProducerPromises, ClaimSweptClaimAndDeclineAreOneEvent) {
  PlayedConsumer noted(*producer_, 1);
  PlayedConsumer fleeting(*producer_, 2);
  PlayedConsumer swept(*producer_, 3);
  PlayedConsumer declining(*producer_, 4);
  std::byte* data = allocate();
  const ExportTicket ticket = promise(data, 5);
  EXPECT_EQ(noted.claim(ticket), ClaimVerdict::kStands);
  EXPECT_EQ(fleeting.claim(ticket), ClaimVerdict::kStands);
  fleeting.release_all();
  expect_in_flight(3);
  producer_->decline(noted.lease(), ticket.export_index, ticket.generation);
  producer_->decline(fleeting.lease(), ticket.export_index, ticket.generation);
  expect_in_flight(3);
  for (int time = 0; time < 2; ++time) {
    producer_->decline(declining.lease(), ticket.export_index, ticket.generation);
    expect_in_flight(2);
  }
  EXPECT_EQ(declining.claim(ticket), ClaimVerdict::kStands);
  declining.release_all();
  expect_in_flight(2);
  EXPECT_EQ(swept.claim(ticket), ClaimVerdict::kStands);
  swept.die();  // unseen until the sweep
  expect_in_flight(1);
  noted.die();
  expect_in_flight(1);
  allocator_->free(data);
  expect_in_flight(1);
  EXPECT_EQ(limbo_blocks(), 1);
  producer_->decline(fleeting.lease(), ticket.export_index, ticket.generation);
  expect_in_flight(1);
  PlayedConsumer last(*producer_, 5);
  EXPECT_EQ(last.claim(ticket), ClaimVerdict::kStands);
  last.release_all();
  expect_over(ticket);
}

TEST_F(ProducerPromises, WhoWasPromisedNothingIsNotCountedWhenItDies) {
  PlayedConsumer idle(*producer_, 1);
  std::byte* data = allocate();
  const ExportTicket ticket = promise(data, 2);
  idle.die();
  expect_in_flight(2);
  EXPECT_TRUE(producer_->withdraw(ticket.export_index, ticket.generation));
  expect_in_flight(0);
  allocator_->free(data);
  expect_over(ticket);
}

// Its time is over with one of three there: the others are late, the holder keeps it.
TEST_F(ProducerPromises, TimeLimitEndsWhatIsStillExpected) {
  PlayedConsumer holder(*producer_, 1);
  PlayedConsumer unseen(*producer_, 2);
  PlayedConsumer late(*producer_, 3);
  std::byte* data = allocate();
  const ExportTicket ticket = promise(data, 3, milliseconds(0));
  EXPECT_EQ(holder.claim(ticket), ClaimVerdict::kStands);
  expect_in_flight(2);
  EXPECT_FALSE(producer_->next_deadline());  // the owner holds on
  allocator_->free(data);
  ASSERT_TRUE(producer_->next_deadline());
  EXPECT_EQ(unseen.claim(ticket), ClaimVerdict::kStands);  // just in time, and not noted
  producer_->run_time_limits(Producer::Clock::now() + milliseconds(1));
  EXPECT_EQ(stats().expired, 1U);
  expect_in_flight(0);
  EXPECT_EQ(stats().held_claims, 2U);
  EXPECT_EQ(late.claim(ticket), ClaimVerdict::kExpired);
  EXPECT_EQ(limbo_blocks(), 1);
  holder.release_all();
  unseen.release_all();
  expect_over(ticket);
  EXPECT_EQ(late.claim(ticket), ClaimVerdict::kExpired);
}

// The last of those expected takes the deadline away.
TEST_F(ProducerPromises, NoDeadlineOnceAllHaveCome) {
  PlayedConsumer first(*producer_, 1);
  PlayedConsumer second(*producer_, 2);
  std::byte* data = allocate();
  const ExportTicket ticket = promise(data, 2, milliseconds(0));
  allocator_->free(data);
  EXPECT_EQ(first.claim(ticket), ClaimVerdict::kStands);
  expect_in_flight(1);
  EXPECT_TRUE(producer_->next_deadline());
  EXPECT_EQ(second.claim(ticket), ClaimVerdict::kStands);
  expect_in_flight(0);
  EXPECT_FALSE(producer_->next_deadline());
  producer_->run_time_limits(Producer::Clock::now() + std::chrono::hours(1));
  EXPECT_EQ(stats().expired, 0U);
  first.release_all();
  EXPECT_EQ(limbo_blocks(), 1);
  second.release_all();
  expect_over(ticket);
}

TEST_F(ProducerPromises, WithdrawLeavesHoldersTheirsAndRefusesTheRest) {
  PlayedConsumer holder(*producer_, 1);
  PlayedConsumer late(*producer_, 2);
  std::byte* data = allocate();
  const ExportTicket ticket = promise(data, 4);
  EXPECT_EQ(holder.claim(ticket), ClaimVerdict::kStands);
  EXPECT_TRUE(producer_->withdraw(ticket.export_index, ticket.generation));
  expect_in_flight(0);
  EXPECT_EQ(late.claim(ticket), ClaimVerdict::kWithdrawn);
  EXPECT_EQ(holder.claim(ticket), ClaimVerdict::kWithdrawn);
  allocator_->free(data);
  producer_->collect();
  EXPECT_EQ(limbo_blocks(), 1);
  holder.release_all();
  expect_over(ticket);
}

TEST_F(ProducerPromises, ExitWaitsForAllOfThem) {
  PlayedConsumer first(*producer_, 1);
  PlayedConsumer second(*producer_, 2);
  std::byte* data = allocate();
  const ExportTicket ticket = promise(data, 2);
  for (PlayedConsumer* consumer : {&first, &second}) {
    EXPECT_FALSE(producer_->drained());
    EXPECT_EQ(consumer->claim(ticket), ClaimVerdict::kStands);
    consumer->mark_mapped(ticket);
  }
  sim_->wait_until_idle();
  EXPECT_TRUE(producer_->drained());
  first.release_all();
  second.release_all();
  allocator_->free(data);
}

TEST_F(ProducerPromises, AThousandProcessesAndASendThatFailed) {
  set_fail_points("share.after_enqueue=error");
  std::byte* data = allocate();
  EXPECT_ERROR((void)promise(data, 1000), kInternal);
  set_fail_points("");
  expect_in_flight(0);
  const ExportTicket ticket = promise(data, 40);
  allocator_->free(data);
  for (int pid = 1; pid <= 40; ++pid) {
    PlayedConsumer consumer(*producer_, pid);
    EXPECT_EQ(consumer.claim(ticket), ClaimVerdict::kStands);
    consumer.release_all();
    if (pid % 2 == 0) consumer.die();
    expect_in_flight(static_cast<std::uint64_t>(40 - pid));
  }
  expect_over(ticket);
}

// They are counted under the collect lock.
TEST_F(ProducerPromises, CountingThoseWhoComeAllocatesNothing) {
  std::byte* data = allocate();
  const ExportTicket ticket = promise(data, 100);
  std::vector<std::unique_ptr<PlayedConsumer>> consumers;
  for (int pid = 1; pid <= 40; ++pid) {
    consumers.push_back(std::make_unique<PlayedConsumer>(*producer_, pid));
    EXPECT_EQ(consumers.back()->claim(ticket), ClaimVerdict::kStands);
  }
  {
    const ShortHostMemory none(1);
    producer_->collect();
    EXPECT_FALSE(none.failed());
  }
  expect_in_flight(60);
  for (const auto& consumer : consumers) consumer->release_all();
  EXPECT_TRUE(producer_->withdraw(ticket.export_index, ticket.generation));
  allocator_->free(data);
  expect_over(ticket);
}

TEST(LeaseSets, EachSetTakesEachNameOnce) {
  LeaseSets sets(4);
  for (std::uint32_t index = 0; index < 4; ++index) {
    EXPECT_TRUE(sets.insert(index, 1));
    EXPECT_FALSE(sets.insert(index, 1));
    EXPECT_TRUE(sets.insert(index, 5));
    EXPECT_TRUE(sets.insert(index, 0xffff'ffff'ffffULL));
    EXPECT_FALSE(sets.insert(index, 5));
    EXPECT_EQ(sets.size(index), 3U);
  }
  sets.clear(2);
  sets.clear(2);
  EXPECT_EQ(sets.size(2), 0U);
  for (std::uint32_t index = 0; index < 4; ++index) EXPECT_EQ(sets.insert(index, 5), index == 2);
}

// One that finds no room for a name has not taken it, and takes it when another export is over.
TEST(LeaseSets, WhatCannotBeKeptIsNotTaken) {
  LeaseSets sets(2);
  const std::uint64_t half = sets.capacity() / 2;
  for (int round = 0; round < 3; ++round) {
    for (std::uint64_t name = 2; name < half + 2; ++name) {
      EXPECT_TRUE(sets.insert(0, name));
      EXPECT_TRUE(sets.insert(1, name));
    }
    EXPECT_FALSE(sets.insert(0, 1));
    EXPECT_FALSE(sets.insert(0, 2));
    EXPECT_EQ(sets.size(0), half);
    sets.clear(1);
    EXPECT_TRUE(sets.insert(0, 1));
    EXPECT_FALSE(sets.insert(0, 1));
    sets.clear(0);
  }
}

}  // namespace
}  // namespace limbo
