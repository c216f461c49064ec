// Collecting: who meets another at work, who waits for what, and what becomes a candidate.
#include <atomic>
#include <optional>
#include <thread>

#include "ipc/collect_lock.h"
#include "ipc/fail_point_hooks.h"
#include "tests/unit/producer_support.h"

namespace limbo {
namespace {

using namespace limbo::testing;
using std::chrono::milliseconds;
using std::chrono::seconds;

class LentBlock : public ProducerTest {
 protected:
  // A block that is freed and that `consumer_` holds, noted.
  void lend() {
    std::byte* data = allocate();
    ticket_ = share(data);
    consumer_.emplace(*producer_);
    EXPECT_EQ(consumer_->claim(ticket_), ClaimVerdict::kStands);
    producer_->collect();
    allocator_->free(data);
    producer_->collect();
    EXPECT_EQ(limbo_blocks(), 1);
  }
  // As another thread would: the release, and a collect that meets the one that is under way.
  void release_and_collect() {
    consumer_->release(ticket_);
    EXPECT_FALSE(producer_->collect());
  }

  ExportTicket ticket_;
  std::optional<PlayedConsumer> consumer_;
};

// ---- a collect that meets another one ---------------------------------------------------------

using CollectGivesUp = LentBlock;

TEST_F(CollectGivesUp, TheLocksHolderIsAskedToLookAgain) {
  CollectLock lock;
  lock.lock();
  EXPECT_FALSE(lock.try_lock_or_ask());
  EXPECT_FALSE(lock.unlock_or_again());
  EXPECT_TRUE(lock.unlock_or_again());
}

// The holder has passed the row that changes.
TEST_F(CollectGivesUp, WhatIsReleasedBehindTheHoldersLookComesBackWithIt) {
  lend();
  at_fail_point("collect.after_note", [this] { release_and_collect(); });
  producer_->collect();
  EXPECT_EQ(limbo_blocks(), 0);
}

// Who holds the lock for another reason runs the pass that was asked for.
TEST_F(CollectGivesUp, WhoeverHoldsTheLockLooksAgain) {
  lend();
  at_fail_point("collect.before_unlock", [this] { release_and_collect(); });
  (void)producer_->next_deadline();
  EXPECT_EQ(limbo_blocks(), 0);
}

using AgainLost = LentBlock;

TEST_F(AgainLost, TheUnlockFailsWhereSomebodyHasAsked) {
  CollectLock lock;
  for (int round = 0; round < 2; ++round) {
    lock.lock();
    EXPECT_FALSE(lock.try_lock_or_ask());
    EXPECT_FALSE(lock.unlock_or_again());
    EXPECT_TRUE(lock.unlock_or_again());
  }
}

// Asked just before the unlock, behind the holder's last look.
TEST_F(AgainLost, WhatIsReleasedJustBeforeTheUnlockComesBackWithIt) {
  lend();
  at_fail_point("collect.before_unlock", [this] { release_and_collect(); });
  producer_->collect();
  EXPECT_EQ(limbo_blocks(), 0);
}

// ---- the last look before out-of-memory -------------------------------------------------------

using UnpinsNotAwaited = LentBlock;

TEST_F(UnpinsNotAwaited, TheLastLookWaitsForWhoeverStillUnpins) {
  lend();
  consumer_->release(ticket_);
  std::atomic<bool> unpinning{false};
  std::atomic<bool> looked{false};
  at_fail_point("collect.before_unpin", [&] {
    unpinning = true;
    EXPECT_TRUE(eventually([&] { return looked.load(); }));
    std::this_thread::sleep_for(milliseconds(100));  // who does not wait is back by then
  });
  std::thread collector([&] { producer_->collect(); });
  ASSERT_TRUE(eventually([&] { return unpinning.load(); }));
  at_fail_point("collect.before_unlock", [&] { looked = true; });
  EXPECT_TRUE(producer_->collect_thoroughly(0, seconds(30)));
  EXPECT_EQ(limbo_blocks(), 0);
  collector.join();
}

// ---- candidates -------------------------------------------------------------------------------

using DirtyOnlyCandidates = ProducerTest;

// Claimed, noted, released, noted; then the owner frees. No dirty word changes any more.
TEST_F(DirtyOnlyCandidates, AFreeIsEnoughToCloseAnExport) {
  PlayedConsumer consumer(*producer_);
  std::byte* data = allocate();
  const ExportTicket ticket = share(data);
  ASSERT_EQ(consumer.claim(ticket), ClaimVerdict::kStands);
  producer_->collect();
  consumer.release(ticket);
  producer_->collect();
  EXPECT_EQ(word(ticket).state, protocol::ExportState::kOpen);
  allocator_->free(data);
  EXPECT_EQ(limbo_blocks(), 1);
  producer_->collect();
  EXPECT_EQ(limbo_blocks(), 0);
}

// Opened by the owner itself: there is no row at all.
TEST_F(DirtyOnlyCandidates, AFreeAfterAnOpenInTheSameProcess) {
  std::byte* data = allocate();
  const ExportTicket ticket = share(data);
  const OwnOpen own = producer_->open_own(ticket.export_index, ticket.generation);
  allocator_->unpin(own.block.block);
  producer_->collect();
  allocator_->free(data);
  producer_->collect();
  EXPECT_EQ(limbo_blocks(), 0);
}

}  // namespace
}  // namespace limbo
