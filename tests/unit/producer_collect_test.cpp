// Collecting: claims and releases noted, exports closed, blocks back.
#include <functional>
#include <thread>

#include "ipc/fail_point_hooks.h"
#include "tests/unit/producer_support.h"

namespace limbo {
namespace {

using namespace limbo::testing;
using protocol::ExportState;
using std::chrono::milliseconds;
using std::chrono::seconds;

class ProducerCollect : public ProducerTest {
 protected:
  // Another thread collects and stands for 200 ms at `point`; returns when it is there.
  std::thread collect_slowly(const std::string& point) {
    set_fail_points(point + "=delay:200@1");
    std::thread collector([this] { producer_->collect(); });
    EXPECT_TRUE(eventually([&] { return fail_point_passed(point) == 1; }));
    return collector;
  }
};

TEST_F(ProducerCollect, BlockComesBackAfterFreeAndRelease) {
  PlayedConsumer consumer(*producer_);
  const ExportTicket ticket = left_to(consumer);
  EXPECT_FALSE(producer_->collect() && limbo_blocks() == 0);
  EXPECT_EQ(stats().held_claims, 1U);
  EXPECT_EQ(limbo_blocks(), 1);
  consumer.release(ticket);
  EXPECT_TRUE(producer_->collect());
  EXPECT_EQ(limbo_blocks(), 0);
  EXPECT_EQ(consumer.state(0), ClaimState::kFree);
  EXPECT_FALSE(producer_->collect());
  EXPECT_EQ(consumer.claim(ticket), ClaimVerdict::kGone);
}

TEST_F(ProducerCollect, BlockComesBackAfterReleaseAndFree) {
  PlayedConsumer consumer(*producer_);
  std::byte* data = allocate();
  const ExportTicket ticket = share(data);
  ASSERT_EQ(consumer.claim(ticket), ClaimVerdict::kStands);
  consumer.release(ticket);
  producer_->collect();
  EXPECT_EQ(word(ticket).state, ExportState::kOpen);  // its owner holds the storage
  // Trace 17: everything is noted; no dirty word changes any more.
  allocator_->free(data);
  EXPECT_TRUE(producer_->collect());
  EXPECT_EQ(word(ticket).state, ExportState::kFree);
}

TEST_F(ProducerCollect, ReleaseIsSeenWhenTheConsumersStreamHasPassedIt) {
  PlayedConsumer consumer(*producer_);
  sim_->register_host_memory(0, consumer.host_memory());
  const StreamRef stream{0, sim_->create_stream(0)};
  const ExportTicket ticket = left_to(consumer);
  const SimHold hold = sim_->hold_stream(stream);
  consumer.release_on(*sim_, stream, ticket);
  producer_->collect();
  EXPECT_EQ(limbo_blocks(), 1);
  sim_->release_hold(hold);
  sim_->synchronize_stream(stream);
  EXPECT_TRUE(producer_->collect());
  EXPECT_EQ(limbo_blocks(), 0);
  sim_->destroy_stream(stream);
  sim_->unregister_host_memory(consumer.host_memory().data);
}

TEST_F(ProducerCollect, OneMessageOpenedByManyWhileItsOwnerHoldsIt) {
  std::byte* data = allocate();
  const ExportTicket ticket = share(data);
  std::vector<PlayedConsumer> consumers;
  for (int i = 0; i < 8; ++i) {
    consumers.emplace_back(*producer_, 100 + i);
    ASSERT_EQ(consumers.back().claim(ticket), ClaimVerdict::kStands);
    producer_->collect();
  }
  EXPECT_EQ(stats().held_claims, 8U);
  allocator_->free(data);
  for (PlayedConsumer& consumer : consumers) {
    producer_->collect();
    EXPECT_EQ(limbo_blocks(), 1);
    consumer.release_all();
  }
  EXPECT_TRUE(producer_->collect());
}

// Nor does it undo pins, which may wait for the device.
TEST_F(ProducerCollect, WhoAsksAgainAndAgainDoesNotKeepTheReaper) {
  PlayedConsumer consumer(*producer_);
  const ExportTicket ticket = left_to(consumer);
  producer_->collect();
  consumer.release(ticket);
  int asked = 0;
  const std::function<void()> ask = [&] {
    if (++asked == 1000) return;
    EXPECT_FALSE(producer_->collect());
    at_fail_point("collect.before_unlock", ask);
  };
  const auto on_reaper = {std::function<void()>([&] { producer_->heard(consumer.lease(), {}); }),
                          std::function<void()>([&] { producer_->complete_waits(7); })};
  for (const auto& call : on_reaper) {
    asked = 0;
    at_fail_point("collect.before_unlock", ask);
    call();
    at_fail_point("collect.before_unlock", {});
    EXPECT_LT(asked, 100);
    EXPECT_GT(asked, 1);
    EXPECT_EQ(limbo_blocks(), 1);
  }
  EXPECT_TRUE(producer_->collect());
  EXPECT_EQ(limbo_blocks(), 0);
}

// Trace 1: a release whose dirty words are missing is found by the look before out-of-memory.
TEST_F(ProducerCollect, ThoroughLookNeedsNoDirtyWords) {
  PlayedConsumer consumer(*producer_);
  std::byte* data = allocate();
  const ExportTicket ticket = share(data);
  std::uint32_t slot = 0;
  ASSERT_EQ(consumer.claim(ticket, &slot), ClaimVerdict::kStands);
  producer_->collect();
  allocator_->free(data);
  consumer.row().claim(slot)->store(
      protocol::claim_bits({ticket.export_index, ticket.generation}, ClaimState::kReleased));
  producer_->collect();
  EXPECT_EQ(limbo_blocks(), 1);
  EXPECT_TRUE(producer_->collect_thoroughly(0, seconds(5)));
  EXPECT_EQ(limbo_blocks(), 0);
}

// Trace 3: message one of two opened twice by one process and let go; message two stays.
TEST_F(ProducerCollect, MessageOpenedTwiceUsesUpItsOwnPromiseOnly) {
  PlayedConsumer consumer(*producer_);
  std::byte* data = allocate();
  const ExportTicket one = share(data);
  const ExportTicket two = share(data);
  ASSERT_EQ(consumer.claim(one), ClaimVerdict::kStands);
  ASSERT_EQ(consumer.claim(one), ClaimVerdict::kStands);
  producer_->collect();
  EXPECT_EQ(stats().in_flight, 1U);
  consumer.release(one);
  consumer.release(one);
  allocator_->free(data);
  producer_->collect();
  EXPECT_EQ(word(one).state, ExportState::kFree);
  EXPECT_EQ(word(two).state, ExportState::kOpen);
  EXPECT_EQ(consumer.claim(two), ClaimVerdict::kStands);
  consumer.release(two);
  EXPECT_TRUE(producer_->collect());
}

// Trace 6: a collect that finds another at work asks it to look again, and what was released
// before it is found by the time the other is done; trace 18: also when it asks just before the
// unlock.
TEST_F(ProducerCollect, SecondCollectMakesTheFirstLookAgain) {
  for (const char* point : {"collect.after_note", "collect.before_unlock"}) {
    PlayedConsumer consumer(*producer_);
    const ExportTicket ticket = left_to(consumer);
    std::thread collector = collect_slowly(point);
    consumer.release(ticket);
    producer_->collect();
    collector.join();
    EXPECT_EQ(limbo_blocks(), 0) << point;
  }
}

// The same for those who hold the lock for another reason.
TEST_F(ProducerCollect, AnyHolderRunsThePassThatWasAskedFor) {
  PlayedConsumer consumer(*producer_);
  const ExportTicket ticket = left_to(consumer);
  set_fail_points("collect.before_unlock=delay:200@1");
  std::thread reporter([&] { (void)producer_->next_deadline(); });
  ASSERT_TRUE(eventually([] { return fail_point_passed("collect.before_unlock") == 1; }));
  consumer.release(ticket);
  producer_->collect();
  reporter.join();
  EXPECT_EQ(limbo_blocks(), 0);
}

// Threads that collect in a tight loop ask again before the holder can leave. It runs some passes for
// them, and then unlocks and unpins all the same; what was asked for last is looked for still.
TEST_F(ProducerCollect, WhoAsksAgainAndAgainKeepsNobodyInside) {
  constexpr int kMost = 1000;
  PlayedConsumer consumer(*producer_);
  std::byte* data = allocate();
  std::byte* later = allocate();
  const ExportTicket ticket = share(data);
  const ExportTicket last = share(later);
  ASSERT_EQ(consumer.claim(ticket), ClaimVerdict::kStands);
  ASSERT_EQ(consumer.claim(last), ClaimVerdict::kStands);
  consumer.release(ticket);
  allocator_->free(data);
  allocator_->free(later);
  int asked = 0;
  std::function<void()> ask = [&] {
    if (asked == kMost || limbo_blocks() < 2) {  // the first block is back: enough
      consumer.release(last);
      EXPECT_FALSE(producer_->collect());
      return;
    }
    ++asked;
    EXPECT_FALSE(producer_->collect());  // the lock is taken: by the thread itself
    at_fail_point("collect.before_unlock", ask);
  };
  at_fail_point("collect.before_unlock", ask);
  EXPECT_TRUE(producer_->collect());
  EXPECT_LT(asked, kMost);
  EXPECT_EQ(limbo_blocks(), 0);
}

// Trace 19: whoever unlocks may still be unpinning; the look before out-of-memory waits for it.
TEST_F(ProducerCollect, ThoroughLookWaitsForPendingUnpins) {
  PlayedConsumer consumer(*producer_);
  std::byte* data = allocate();
  const ExportTicket ticket = share(data);
  ASSERT_EQ(consumer.claim(ticket), ClaimVerdict::kStands);
  consumer.release(ticket);
  allocator_->free(data);
  std::thread collector = collect_slowly("collect.before_unpin");
  EXPECT_TRUE(producer_->collect_thoroughly(0, seconds(30)));
  EXPECT_EQ(limbo_blocks(), 0);
  collector.join();
}

TEST_F(ProducerCollect, ThoroughLookGivesUpInTime) {
  std::thread collector = collect_slowly("collect.after_note");
  EXPECT_FALSE(producer_->collect_thoroughly(0, milliseconds(1)));
  collector.join();
}

// Trace 20: a lease that enters the list during a closing waits for it, and then meets FREE.
TEST_F(ProducerCollect, LeaseThatComesDuringAClosing) {
  PlayedConsumer first(*producer_);
  std::byte* data = allocate();
  const ExportTicket ticket = share(data);
  ASSERT_EQ(first.claim(ticket), ClaimVerdict::kStands);
  first.release(ticket);
  allocator_->free(data);
  std::thread collector = collect_slowly("close.before_verdict");
  PlayedConsumer second(*producer_);
  EXPECT_EQ(second.claim(ticket), ClaimVerdict::kGone);
  collector.join();
  EXPECT_EQ(limbo_blocks(), 0);
}

// Either the claimer sees CLOSING, or the closer sees the claim: on the product's own tables.
TEST_F(ProducerCollect, ClaimDuringAClosingIsRefusedOrCounts) {
  for (const char* point : {"close.after_closing", "close.before_verdict", "close.after_verdict"}) {
    PlayedConsumer first(*producer_);
    PlayedConsumer second(*producer_);
    std::byte* data = allocate();
    const ExportTicket ticket = share(data);
    ASSERT_EQ(first.claim(ticket), ClaimVerdict::kStands);
    first.release(ticket);
    allocator_->free(data);
    std::thread collector = collect_slowly(point);
    EXPECT_NE(second.claim(ticket), ClaimVerdict::kStands) << point;
    collector.join();
    set_fail_points("");
    // The refused claim was HELD during the closing, so the closer may have gone back to OPEN.
    producer_->collect();
    producer_->collect();
    EXPECT_EQ(limbo_blocks(), 0) << point;
    first.die();
    second.die();
  }
}

TEST_F(ProducerCollect, SaysWhetherAnythingIsLent) {
  PlayedConsumer consumer(*producer_);
  EXPECT_FALSE(producer_->lends_anything());
  std::byte* data = allocate();
  const ExportTicket ticket = share(data);
  EXPECT_TRUE(producer_->lends_anything());
  ASSERT_EQ(consumer.claim(ticket), ClaimVerdict::kStands);
  consumer.release(ticket);
  allocator_->free(data);
  producer_->collect();
  EXPECT_FALSE(producer_->lends_anything());
}

// A miss of the allocator finds what consumers have released.
TEST_F(ProducerCollect, AllocationCollectsBeforeItFails) {
  PlayedConsumer consumer(*producer_);
  const std::size_t size_bytes = 1536 << 20;  // two do not fit into the simulated device
  std::byte* data = allocate(size_bytes);
  const ExportTicket ticket = share(data);
  ASSERT_EQ(consumer.claim(ticket), ClaimVerdict::kStands);
  allocator_->free(data);
  try {
    (void)allocate(size_bytes);
    ADD_FAILURE() << "room that is held by a consumer";
  } catch (const OutOfMemory& error) {
    EXPECT_TRUE(contains(error.holders, "process 4711 holds 1536.00 MiB by 1 message"))
        << error.holders;
  }
  consumer.release(ticket);
  data = allocate(size_bytes);
  EXPECT_NE(data, nullptr);
  allocator_->free(data);
}

}  // namespace
}  // namespace limbo
