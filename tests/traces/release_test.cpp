// A consumer's release: what its words say, which slots are free again, what may be closed.
#include <thread>

#include "ipc/consumer_row.h"
#include "tests/processes/sharing_support.h"
#include "tests/unit/producer_support.h"
#include "tests/unit/protocol_support.h"

namespace limbo {
namespace {

using namespace limbo::testing;
using std::chrono::milliseconds;

using ReleaseWithoutDirty = ProducerTest;

// Released by the host, the block comes back at the next collect and not only when memory runs out.
TEST_F(ReleaseWithoutDirty, AHostsReleaseIsSeenByTheNextCollect) {
  PlayedConsumer consumer(*producer_);
  const ExportTicket ticket = left_to(consumer);
  producer_->collect();
  ASSERT_EQ(stats().held_claims, 1U);
  consumer.release(ticket);
  producer_->collect();
  EXPECT_EQ(limbo_blocks(), 0);
  producer_->collect_thoroughly(0, std::chrono::seconds(1));
}

// What these two end with where an expectation has failed: the reader's end gives everything back.
class ReaderTest : public SharingTest {
 protected:
  void TearDown() override {
    if (HasFailure()) reader_.process().kill();
    SharingTest::TearDown();
  }
};

using NumberUsedTwice = ReaderTest;

// Each release by a stream is seen for itself.
TEST_F(NumberUsedTwice, OneReleaseAfterTheOtherIsSeen) {
  sender_.allocate("b", kMiB, 1);
  for (const char* name : {"one", "two"}) reader_.receive(name, sender_.share("b"));
  for (const char* name : {"one", "two"}) {
    reader_.drop(name);
    EXPECT_TRUE(reader_.becomes("releases_pending", 0));
    const int left = std::string(name) == "one" ? 1 : 0;
    EXPECT_TRUE(eventually(
        [&] {
          sender_.collect();
          return sender_.stat("held_claims") == left;
        },
        milliseconds(3000)))
        << name;
  }
  sender_.free("b");
}

// A slot is taken again only when its release was struck off: FREE alone does not say so.
TEST(SlotTakenBeforeStrikeOff, AFreeSlotWhoseReleaseIsOnTheListIsNotTaken) {
  Capacities capacities;
  capacities.claims = protocol::kGroupClaims;
  std::vector<std::uint64_t> memory(row_layout(capacities).total / sizeof(std::uint64_t) + 1);
  ConsumerRow row(RowView(memory.data(), capacities));
  std::vector<std::uint32_t> taken;
  while (const auto slot = row.take()) {
    taken.push_back(*slot);
    row.view().claim(*slot)->store(protocol::claim_bits({1, 1}, protocol::ClaimState::kHeld));
    ASSERT_LE(taken.size(), capacities.claims);
  }
  ASSERT_EQ(taken.size(), capacities.claims);
  // Its stream has released it and the producer has freed it; here that was not looked at yet.
  row.view().claim(7)->store(protocol::claim_bits({1, 1}, protocol::ClaimState::kFree));
  EXPECT_FALSE(row.take().has_value());
  row.released(7);
  EXPECT_EQ(row.take(), 7U);
}

using CloseWhileLanding = ReaderTest;

// As long as a release has not landed, a kernel may use the mapping.
TEST_F(CloseWhileLanding, NothingIsClosedBeforeTheReleaseHasLanded) {
  reader_.set_option("import_cache_pieces", 0);
  sender_.allocate("b", 32 * kMiB, 1);
  reader_.use_stream("s");
  reader_.receive("r", sender_.share("b"));
  reader_.write_for("r", 2, milliseconds(1500));
  reader_.drop("r");
  for (int look = 0; look < 40; ++look) {  // longer than the unmapper takes
    std::this_thread::sleep_for(milliseconds(10));
    ASSERT_EQ(reader_.calls("close_memory"), 0U);
  }
  EXPECT_EQ(reader_.stat("releases_pending"), 1);
  EXPECT_TRUE(reader_.becomes("closes", 1));
  sender_.free("b");
}

using MarkClearedLate = ReaderTest;

// A piece that is opened anew while its old mapping is being closed stays marked.
TEST_F(MarkClearedLate, TheMarkOfTheNewMappingStays) {
  reader_.set_option("import_cache_pieces", 0);
  sender_.allocate("b", 32 * kMiB, 1);
  reader_.receive("old", sender_.share("b"));
  reader_.set_faults("close_memory:1=slow:1000");
  reader_.drop("old");
  EXPECT_TRUE(eventually([&] { return reader_.calls("close_memory") == 1; }));
  reader_.receive("new", sender_.share("b"));
  EXPECT_EQ(reader_.stat("closes"), 0);  // it did not wait for the closing
  EXPECT_TRUE(reader_.becomes("closes", 1));
  EXPECT_EQ(sender_.mapped_by_others(), 1U);
  EXPECT_TRUE(reader_.holds("new", 1));
  reader_.drop("new");
  EXPECT_TRUE(reader_.becomes("closes", 2));
  EXPECT_EQ(sender_.mapped_by_others(), 0U);
  sender_.free("b");
}

// Two GPUs, and a row that has one group of claims.
class LostSlotReused : public ::testing::Test {
 protected:
  LostSlotReused() {
    ::setenv("LIMBO_SIM_DEVICES", "2", 1);
    ::setenv("LIMBO_LEDGER_CLAIMS", "512", 1);
    sandbox_ = std::make_unique<Sandbox>();
    sender_ = std::make_unique<Peer>();
    reader_ = std::make_unique<Peer>();
    ::unsetenv("LIMBO_SIM_DEVICES");
    ::unsetenv("LIMBO_LEDGER_CLAIMS");
  }
  std::unique_ptr<Sandbox> sandbox_;
  std::unique_ptr<Peer> sender_;
  std::unique_ptr<Peer> reader_;
};

// A batch that was enqueued when the context was lost may still write: its slot is not taken again.
TEST_F(LostSlotReused, ARowHasOneSlotLessForABatchThatNeverLanded) {
  sender_->allocate("b", kMiB, 1);
  reader_->use_stream("s");
  reader_->receive("lost", sender_->share("b"));
  reader_->write_for("lost", 2, milliseconds(300));
  reader_->drop("lost");
  ASSERT_TRUE(reader_->lose_context());
  ASSERT_TRUE(reader_->becomes("releases_pending", 0));
  EXPECT_TRUE(sender_->becomes("held_claims", 0));
  // On the other device it goes on.
  reader_->use_stream("default");
  const std::string messages = sender_->call("repeat 511 share b -1");
  reader_->call("receive_many r " + messages + " on 1");
  const std::string last = sender_->share("b");
  EXPECT_EQ(error_of([&] { reader_->receive("last", last, 1); }), "ledger_full");
  reader_->process().kill();
  EXPECT_TRUE(sender_->becomes("held_claims", 0));
  sender_->free("b");
  EXPECT_TRUE(sender_->becomes("limbo", 0));
  sender_->check_invariants();
  sender_->process().kill();
}

class GlobalCaptureMode : public SharingTest {};

// The library's threads ask the device while somebody captures in a mode that forbids such calls.
TEST_F(GlobalCaptureMode, ACaptureOutlastsTheLibrarysQuestions) {
  sender_.allocate("b", kMiB, 1);
  reader_.use_stream("s");
  reader_.receive("r", sender_.share("b"));
  sender_.free("b");
  reader_.write_for("r", 2, milliseconds(500));
  reader_.drop("r");  // it does not land yet: the device is asked from time to time what it does
  reader_.use_stream("t");
  reader_.begin_capture("global");
  EXPECT_TRUE(reader_.becomes("releases_pending", 0, milliseconds(5000)));
  EXPECT_EQ(error_of([&] { reader_.end_capture("g"); }), "none");
}

}  // namespace
}  // namespace limbo
