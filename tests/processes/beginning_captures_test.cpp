// Captures that begin while another thread asks the driver about their stream, or enqueues there: a
// program that announces them loses none, and what was released comes back.
#include <thread>

#include "tests/processes/sharing_support.h"

namespace limbo::testing {
namespace {

using std::chrono::milliseconds;

class BeginningCapturesTest : public SharingTest {
 protected:
  void SetUp() override { LIMBO_NEEDS_SIMULATED_DEVICE(); }

  static constexpr milliseconds kSlow{80};  // less than a beginning waits

  // The next call of `kind` takes long before it is made; `cause`, a command, leads to it on another
  // thread. The capture of the peer's stream begins while that call is under way, and ends behind it.
  void capture_during(Peer& peer, const std::string& kind, const std::string& cause) {
    peer.set_faults(kind + ":1=slow:" + std::to_string(kSlow.count()));
    peer.begin_capture_during(kind, cause);
    std::this_thread::sleep_for(2 * kSlow);  // nothing shows that the call has been made
    EXPECT_EQ(error_of([&] { peer.end_capture("g"); }), "none");
  }

  // "r" in the reader, received on its stream "s", which stays in use.
  void receive() {
    sender_.allocate("b", kMiB, 1);
    reader_.use_stream("s");
    reader_.receive("r", sender_.share("b"));
    sender_.free("b");
  }
};

// By the releaser: the release has waited for an earlier graph.
TEST_F(BeginningCapturesTest, WhileALateReleaseAsksForTheStreamsId) {
  receive();
  reader_.begin_capture();
  reader_.drop("r");
  reader_.end_capture("earlier");
  capture_during(reader_, "stream_id", "destroy_graph earlier");
  expect_all_back();
}

TEST_F(BeginningCapturesTest, WhileAReleaseAsksForTheStreamsId) {
  receive();
  capture_during(reader_, "stream_id", "drop_aside r");
  reader_.join();
  expect_all_back();
}

// The write is not the graph's, which therefore keeps nothing.
TEST_F(BeginningCapturesTest, WhileAReleaseIsWritten) {
  receive();
  capture_during(reader_, "write_words", "drop_aside r");
  reader_.join();
  expect_all_back();
  reader_.destroy_graph("g");
}

TEST_F(BeginningCapturesTest, WhileAReleaseOfSeveralStreamsRecordsItsEvents) {
  receive();
  reader_.record_stream("r", "t");
  capture_during(reader_, "record_event", "drop_aside r");
  reader_.join();
  expect_all_back();
}

// By the unmapper: one stream has gone, so that the device is waited for; then the other is asked.
TEST_F(BeginningCapturesTest, WhileTheEndOfAnOwnOpenAsksForTheStreamsId) {
  sender_.allocate("b", kMiB, 1);
  sender_.receive("own", sender_.share("b"));
  sender_.use_stream("s");
  sender_.record_stream("own", "s");
  sender_.record_stream("own", "gone");
  sender_.destroy_stream("gone");
  sender_.free("b");
  capture_during(sender_, "stream_id", "drop own");
  EXPECT_TRUE(sender_.becomes("limbo", 0));
}

// While somebody begins a capture a release waits, and comes back when it is over, or given up.
TEST_F(BeginningCapturesTest, AReleaseWaitsForABeginning) {
  receive();
  reader_.announce_capture();
  const std::uint64_t before = reader_.calls("stream_id");
  reader_.drop("r");
  EXPECT_EQ(reader_.stat("releases_pending"), 1);
  EXPECT_EQ(reader_.calls("stream_id"), before);
  reader_.withdraw_capture();
  expect_all_back();
}

// One release is one, also while somebody has it in hands.
TEST_F(BeginningCapturesTest, AReleaseThatIsLookedAtIsCountedOnce) {
  receive();
  reader_.announce_capture();
  reader_.drop("r");
  reader_.set_faults("is_capturing:1=slow:" + std::to_string(kSlow.count()));
  const auto until = std::chrono::steady_clock::now() + 2 * kSlow;
  while (std::chrono::steady_clock::now() < until) {
    ASSERT_EQ(reader_.stat("releases_pending"), 1);
  }
  reader_.withdraw_capture();
  expect_all_back();
}

// One that is never withdrawn holds nobody up for long: not who needs an answer, nor a release.
TEST_F(BeginningCapturesTest, AnAnnouncementThatIsForgottenEnds) {
  receive();
  reader_.announce_capture();
  sender_.allocate("c", kMiB, 2);
  reader_.receive("q", sender_.share("c"));
  sender_.free("c");
  reader_.record_stream("q", "t");
  reader_.drop("q");
  reader_.drop("r");
  expect_all_back();
  reader_.withdraw_capture();
}

}  // namespace
}  // namespace limbo::testing
