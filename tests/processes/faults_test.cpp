// What goes wrong inside a call: every point that can fail, processes that stop, many threads.
#include "ipc/fail_points.h"
#include "tests/processes/sharing_support.h"

namespace limbo::testing {
namespace {

using std::chrono::milliseconds;

class FaultsTest : public SharingTest {};

std::vector<std::string> points_that_can_fail(const std::string& prefix) {
  std::vector<std::string> names;
  for (const FailPointName& point : fail_point_names()) {
    if (point.can_fail && point.name.starts_with(prefix)) names.emplace_back(point.name);
  }
  return names;
}

TEST_F(FaultsTest, AReceiveThatFailsAnywhereHoldsNothing) {
  const auto names = points_that_can_fail("receive.");
  ASSERT_FALSE(names.empty());
  for (const std::string& name : names) {
    sender_.allocate("b", kMiB, 1);
    const std::string message = sender_.share("b");
    reader_.set_fail_points(name + "=error");
    EXPECT_EQ(error_of([&] { reader_.receive("r", message); }), "internal") << name;
    reader_.set_fail_points("");
    EXPECT_TRUE(sender_.becomes("in_flight", 0)) << name;
    sender_.free("b");
    EXPECT_TRUE(sender_.becomes("limbo", 0)) << name;
    EXPECT_TRUE(sender_.becomes("exports_open", 0)) << name;
  }
  EXPECT_EQ(reader_.stat("receives"), 0);
}

TEST_F(FaultsTest, AConnectionThatFailsIsMadeAnew) {
  sender_.allocate("b", kMiB, 1);
  const std::string message = sender_.share("b");
  reader_.set_fail_points("connect.after_welcome=error");
  EXPECT_EQ(error_of([&] { reader_.receive("r", message); }), "internal");
  reader_.set_fail_points("");
  sender_.set_fail_points("lease.before_listed=error");
  EXPECT_EQ(error_of([&] { reader_.receive("r", message); }), "internal");
  sender_.set_fail_points("");
  reader_.receive("r", message);
  EXPECT_TRUE(reader_.holds("r", 1));
  reader_.drop("r");
  sender_.free("b");
  expect_all_back();
}

TEST_F(FaultsTest, AShareThatFailsAnywhereLendsNothing) {
  const auto names = points_that_can_fail("share.");
  ASSERT_FALSE(names.empty());
  sender_.allocate("b", kMiB, 1);
  for (const std::string& name : names) {
    sender_.set_fail_points(name + "=error");
    EXPECT_EQ(error_of([&] { (void)sender_.share("b"); }), "internal") << name;
    sender_.set_fail_points("");
    EXPECT_EQ(sender_.stat("exports_open"), 0) << name;
  }
  reader_.receive("r", sender_.share("b"));
  EXPECT_TRUE(reader_.holds("r", 1));
  reader_.drop("r");
  sender_.free("b");
  expect_all_back();
}

TEST_F(FaultsTest, ADriverThatRefusesAnyCallOfAReceiveLeavesNothingHeld) {
  LIMBO_NEEDS_SIMULATED_DEVICE();
  (void)reader_.device_name();
  for (const char* call : {"open_memory", "wait_word", "stream_id", "register"}) {
    Peer sender;  // a first message each time: the tables are registered for it
    sender.allocate("b", kMiB, 1);
    const std::string message = sender.share("b");
    reader_.set_faults(std::string(call) + ":1=fail");
    EXPECT_EQ(error_of([&] { reader_.receive("r", message); }), "device_error") << call;
    reader_.receive("r", message);
    EXPECT_TRUE(reader_.holds("r", 1)) << call;
    reader_.drop("r");
    sender.free("b");
    EXPECT_TRUE(sender.becomes("limbo", 0)) << call;
    EXPECT_TRUE(sender.becomes("exports_open", 0)) << call;
  }
}

// ---- processes that stop ------------------------------------------------------------------------

TEST_F(FaultsTest, AStoppedSenderDoesNotHoldUpAReaderThatKnowsIt) {
  sender_.allocate("b", kMiB, 1);
  reader_.receive("known", sender_.share("b"));
  const std::string message = sender_.share("b");
  sender_.process().stop();
  reader_.receive("r", message);
  EXPECT_TRUE(reader_.holds("r", 1));
  reader_.drop("r");
  reader_.drop("known");
  EXPECT_TRUE(reader_.becomes("releases_pending", 0));
  sender_.process().resume();
  sender_.free("b");
  expect_all_back();
}

TEST_F(FaultsTest, AStoppedSenderThatIsNotKnownIsAnErrorAfterTheDeadline) {
  sender_.allocate("b", kMiB, 1);
  const std::string message = sender_.share("b");
  sender_.process().stop();
  EXPECT_EQ(error_of([&] { reader_.receive("r", message); }), "no_channel");
  sender_.process().resume();
  reader_.receive("r", message);
  EXPECT_TRUE(reader_.holds("r", 1));
  reader_.drop("r");
  sender_.free("b");
  expect_all_back();
}

// Stopped between CLOSING and its verdict: a claim looks for a millisecond and then says "gone".
TEST_F(FaultsTest, ASenderStoppedWhileItDecidesDoesNotHoldUpAClaim) {
  sender_.allocate("b", kMiB, 1);
  const std::string message = sender_.share("b");
  reader_.receive("r", message);
  reader_.drop("r");
  EXPECT_TRUE(eventually([&] {
    sender_.collect();
    return sender_.stat("held_claims") == 0;
  }));
  sender_.set_fail_points("close.before_verdict=stop");
  sender_.send("free b");  // now the export can be closed
  sender_.send("collect");
  EXPECT_EQ(error_of([&] {
              // Until the sender has stopped there, the message can still be opened.
              while (true) {
                reader_.receive("again", message);
                reader_.drop("again");
              }
            }),
            "gone");
  sender_.process().resume();
  EXPECT_EQ(sender_.answer(), "");
  EXPECT_EQ(sender_.answer(), "");
  expect_all_back();
}

// ---- threads ------------------------------------------------------------------------------------

TEST_F(FaultsTest, ManyThreadsReceiveAtOnce) {
  constexpr int kThreads = 8;
  constexpr int kRounds = 40;
  // A connection, a piece and a claim that all want first.
  sender_.allocate("b", kMiB, 9);
  std::string messages;
  for (int count = 0; count < kThreads * kRounds; ++count) messages += " " + sender_.share("b");
  EXPECT_EQ(reader_.call("receive_by_threads " + std::to_string(kThreads) + " 9" + messages),
            std::to_string(kThreads * kRounds));
  EXPECT_EQ(reader_.stat("opens"), 1);
  EXPECT_EQ(sender_.stat("leases_connected"), 1);
  sender_.free("b");
  expect_all_back();
  EXPECT_TRUE(sender_.becomes("exports_open", 0));
}

TEST_F(FaultsTest, TwoProcessesLendToEachOther) {
  sender_.allocate("a", kMiB, 1);
  reader_.allocate("b", kMiB, 2);
  for (int round = 0; round < 50; ++round) {
    reader_.receive("r", sender_.share("a"));
    sender_.receive("r", reader_.share("b"));
    EXPECT_TRUE(reader_.holds("r", 1));
    EXPECT_TRUE(sender_.holds("r", 2));
    reader_.drop("r");
    sender_.drop("r");
  }
  sender_.free("a");
  reader_.free("b");
  expect_all_back();
  EXPECT_TRUE(reader_.becomes("limbo", 0));
}

}  // namespace
}  // namespace limbo::testing
