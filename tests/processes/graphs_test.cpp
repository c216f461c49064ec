// Captures: nothing of a release becomes part of a graph, and what a graph uses stays claimed.
#include <thread>

#include "tests/processes/sharing_support.h"

namespace limbo::testing {
namespace {

using std::chrono::milliseconds;

class GraphsTest : public SharingTest {
 protected:
  // "r" in the reader, received on its stream "s".
  void receive() {
    sender_.allocate("b", kMiB, 1);
    reader_.use_stream("s");
    reader_.receive("r", sender_.share("b"));
    sender_.free("b");
  }
  // Nothing that the reader does brings it back; looked at more often than anything is done late.
  void expect_stays_held() {
    for (int look = 0; look < 20; ++look) {
      std::this_thread::sleep_for(milliseconds(10));
      sender_.collect();
      ASSERT_EQ(sender_.stat("held_claims"), 1);
      ASSERT_GT(sender_.stat("limbo"), 0);
    }
  }
};

// Released while it is captured: the graph writes to it at every launch.
TEST_F(GraphsTest, WhatIsReleasedInACaptureIsHeldUntilTheGraphIsDestroyed) {
  receive();
  reader_.begin_capture("global");
  reader_.fill("r", 7);
  reader_.drop("r");
  reader_.end_capture("g");
  expect_stays_held();
  reader_.launch_graph("g");
  reader_.synchronize();
  expect_stays_held();
  reader_.destroy_graph("g");
  expect_all_back();
  EXPECT_TRUE(reader_.becomes("releases_pending", 0));
}

TEST_F(GraphsTest, AGraphThatIsDestroyedWhileItRunsHoldsUntilItsEnd) {
  receive();
  reader_.write_for("r", 1, milliseconds(0));  // loads the kernel
  reader_.begin_capture();
  reader_.write_for("r", 7, milliseconds(700));
  reader_.drop("r");
  reader_.end_capture("g");
  reader_.launch_graph("g");
  reader_.destroy_graph("g");
  sender_.collect();
  EXPECT_EQ(sender_.stat("held_claims"), 1);
  EXPECT_GT(sender_.stat("limbo"), 0);
  expect_all_back();
}

// The usual order: used in a capture, and let go of when that is over. Nobody can see that but by
// being told, when the capture ends.
TEST_F(GraphsTest, WhatLivesAtTheEndOfACaptureIsKeptForItsGraph) {
  receive();
  reader_.begin_capture("global");
  reader_.fill("r", 7);
  EXPECT_TRUE(reader_.keep_for_graph());
  reader_.end_capture("g");
  reader_.drop("r");
  expect_stays_held();
  reader_.destroy_graph("g");
  expect_all_back();
  EXPECT_FALSE(reader_.keep_for_graph());  // nothing is captured
}

TEST_F(GraphsTest, ARecordedStreamThatIsCapturedKeepsTheClaimForItsGraph) {
  receive();
  reader_.use_stream("t");
  reader_.begin_capture();
  reader_.fill("r", 7);
  reader_.record_stream("r", "t");
  reader_.end_capture("g");
  reader_.drop("r");
  expect_stays_held();
  reader_.destroy_graph("g");
  expect_all_back();
}

TEST_F(GraphsTest, TwoGraphsKeepItUntilBothAreDestroyed) {
  receive();
  for (const char* graph : {"one", "two"}) {
    reader_.begin_capture();
    reader_.fill("r", 7);
    EXPECT_TRUE(reader_.keep_for_graph());
    reader_.end_capture(graph);
  }
  reader_.drop("r");
  reader_.destroy_graph("one");
  expect_stays_held();
  reader_.destroy_graph("two");
  expect_all_back();
}

// A block of the process's own, opened where it was sent, in the same way.
TEST_F(GraphsTest, AnOwnBlockIsKeptToo) {
  sender_.allocate("b", kMiB, 1);
  sender_.use_stream("s");
  sender_.receive("own", sender_.share("b"));
  sender_.begin_capture("global");
  sender_.fill("own", 7);
  EXPECT_TRUE(sender_.keep_for_graph());
  sender_.end_capture("g");
  sender_.drop("own");
  sender_.free("b");
  for (int look = 0; look < 10; ++look) {
    std::this_thread::sleep_for(milliseconds(10));
    sender_.collect();
    ASSERT_GT(sender_.stat("limbo"), 0);
  }
  sender_.destroy_graph("g");
  EXPECT_TRUE(sender_.becomes("limbo", 0));
}

TEST_F(GraphsTest, AnOwnBlockReleasedInACaptureComesBackBehindItsGraph) {
  sender_.allocate("b", kMiB, 1);
  sender_.use_stream("s");
  sender_.receive("own", sender_.share("b"));
  sender_.free("b");
  sender_.begin_capture("global");
  sender_.fill("own", 7);
  sender_.drop("own");
  sender_.end_capture("g");
  EXPECT_GT(sender_.stat("limbo"), 0);
  sender_.destroy_graph("g");
  EXPECT_TRUE(sender_.becomes("limbo", 0));
}

// Released before, enqueued late: it is no part of the graph and waits for no graph.
TEST_F(GraphsTest, ALateReleaseStaysOutOfACapture) {
  constexpr int kTakenAtOnce = 256;
  constexpr int kLater = 10;
  sender_.allocate("b", kMiB, 1);
  reader_.use_stream("s");
  const std::string messages = sender_.call("repeat 266 share b -1");
  reader_.call("receive_many r " + messages);
  sender_.free("b");
  reader_.write_for("r0", 3, milliseconds(1000));
  reader_.call("repeat 266 drop r%");
  reader_.begin_capture("global");
  EXPECT_TRUE(reader_.becomes("releases_pending", kLater));
  sender_.collect();
  EXPECT_TRUE(sender_.becomes("held_claims", kLater));
  static_assert(kTakenAtOnce + kLater == 266);
  reader_.end_capture("g");
  reader_.launch_graph("g");
  expect_all_back();
  reader_.destroy_graph("g");
}

// Somebody begins to capture between the look at the stream and the write, by another thread: the
// write is in the graph, and would give back whatever its slot holds when the graph is launched.
TEST_F(GraphsTest, AReleaseThatBecomesPartOfAGraphIsKeptUntilThatIsOver) {
  receive();
  reader_.set_fail_points("release.before_enqueue=delay:300");
  reader_.drop_aside("r");
  EXPECT_TRUE(eventually([&] { return reader_.passed("release.before_enqueue") == 1; }));
  reader_.begin_capture("relaxed");
  reader_.join();
  reader_.end_capture("g");
  reader_.set_fail_points("");
  expect_stays_held();
  reader_.destroy_graph("g");
  expect_all_back();
}

// The same where several streams used it: the event is not waited for, and the capture ends well.
TEST_F(GraphsTest, AReleaseOfSeveralStreamsStaysOutOfACaptureThatBegins) {
  receive();
  reader_.record_stream("r", "t");
  reader_.set_fail_points("release.before_enqueue=delay:300@1");
  reader_.drop_aside("r");
  EXPECT_TRUE(eventually([&] { return reader_.passed("release.before_enqueue") == 1; }));
  reader_.begin_capture("global");
  reader_.join();
  EXPECT_EQ(reader_.stat("releases_pending"), 1);
  reader_.end_capture("g");
  expect_all_back();  // the graph does not use it: it was let go of before
  reader_.destroy_graph("g");
}

// A driver that cannot say when a graph ends: never too early, and one warning.
TEST_F(GraphsTest, WhereTheDriverCannotKeepItTheClaimStaysUntilTheProcessEnds) {
  LIMBO_NEEDS_SIMULATED_DEVICE();
  receive();
  reader_.set_faults("keep_while_graph_lives:1=fail");
  reader_.begin_capture();
  reader_.fill("r", 7);
  reader_.drop("r");
  reader_.end_capture("g");
  reader_.destroy_graph("g");
  const std::string said = reader_.process().output();
  EXPECT_NE(said.find("cannot be given back"), std::string::npos) << said;
  expect_stays_held();
  reader_.process().kill();
  expect_all_back();
}

TEST_F(GraphsTest, ACaptureThatIsLostKeepsNothing) {
  LIMBO_NEEDS_SIMULATED_DEVICE();
  receive();
  reader_.begin_capture();
  reader_.drop("r");
  // Waiting for a stream that is being captured is an error that the capture does not survive.
  EXPECT_EQ(error_of([&] { (void)reader_.call("synchronize_stream"); }), "device_error");
  EXPECT_EQ(error_of([&] { reader_.end_capture("g"); }), "device_error");
  expect_all_back();
}

}  // namespace
}  // namespace limbo::testing
