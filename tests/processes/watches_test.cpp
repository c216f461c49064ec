// A process that cannot watch a descriptor (the kernel counts a user's watches): what it would have
// been told of is seen all the same.
#include "tests/processes/sharing_support.h"

namespace limbo::testing {
namespace {

using std::chrono::milliseconds;

class WatchesTest : public SharingTest {
 protected:
  // The nth descriptor that the peer watches from now on cannot be watched at first.
  static void fail_watch(Peer& peer, int nth) {
    peer.set_fail_points("watch.before_add=error@" + std::to_string(nth));
  }
  static bool has_failed(Peer& peer, int nth) {
    return peer.passed("watch.before_add") >= static_cast<std::size_t>(nth);
  }
};

// Its pidfd, its life line, its connection.
TEST_F(WatchesTest, AReaderSeesTheEndOfASender) {
  LIMBO_NEEDS_SIMULATED_DEVICE();  // hold_stream
  for (const int nth : {1, 2, 3}) {
    Peer sender;
    Peer reader;
    fail_watch(reader, nth);
    sender.use_stream("s");
    sender.allocate("b", kMiB, 1);
    sender.call("hold_stream");
    reader.receive("r", sender.share("b"));
    EXPECT_TRUE(eventually([&] { return has_failed(reader, nth); }));
    sender.process().kill();
    EXPECT_TRUE(eventually([&] { return reader.orphaned("r"); })) << nth;
    if (::testing::Test::HasFailure()) return;  // the next would hang
    reader.synchronize();
    reader.drop("r");
    reader.expect_balance(true);
  }
}

// The connection brings the owner's answers.
TEST_F(WatchesTest, AReaderGetsTheSendersAnswers) {
  fail_watch(reader_, 3);
  sender_.allocate("b", kMiB, 1);
  reader_.receive("r", sender_.share("b"));
  EXPECT_TRUE(eventually([&] { return has_failed(reader_, 3); }));
  const std::string on = reader_.share("r");
  Peer third;
  third.receive("t", on);
  EXPECT_TRUE(third.holds("t", 1));
  third.drop("t");
  reader_.drop("r");
  sender_.free("b");
  expect_all_back();
  third.process().kill();
}

// Behind the three of the link: the forwarder's pidfd and life line. Nobody else completes the wait.
TEST_F(WatchesTest, AThirdSeesTheEndOfAForwarder) {
  for (const int nth : {4, 5}) {
    Peer owner;
    Peer forwarder;
    Peer third;
    fail_watch(third, nth);
    owner.allocate("b", kMiB, 1);
    forwarder.receive("r", owner.share("b"));
    forwarder.write_for("r", 9, milliseconds(1000));
    third.receive("t", forwarder.share("r"));
    EXPECT_TRUE(eventually([&] { return has_failed(third, nth); }));
    owner.process().kill();
    forwarder.process().kill();
    third.synchronize();
    EXPECT_TRUE(third.becomes("forwarders_met", 0)) << nth;
    third.drop("t");
    third.expect_balance(true);
  }
}

// The first that a sender watches is its listener.
TEST_F(WatchesTest, ASenderIsReached) {
  fail_watch(sender_, 1);
  sender_.allocate("b", kMiB, 1);
  reader_.receive("r", sender_.share("b"));
  EXPECT_TRUE(has_failed(sender_, 1));
  reader_.drop("r");
  sender_.free("b");
  expect_all_back();
}

// The second is a reader's connection: refused, at once and with the cause; the next is not.
TEST_F(WatchesTest, AConnectionThatCannotBeWatchedIsRefused) {
  fail_watch(sender_, 2);
  sender_.allocate("b", kMiB, 1);
  const std::string message = sender_.share("b");
  const auto began = std::chrono::steady_clock::now();
  try {
    reader_.receive("r", message);
    ADD_FAILURE() << "received";
  } catch (const PeerError& failure) {
    EXPECT_EQ(failure.code(), "no_channel");
    EXPECT_NE(std::string(failure.what()).find("watch"), std::string::npos) << failure.what();
  }
  EXPECT_LT(std::chrono::steady_clock::now() - began, milliseconds(1500));
  reader_.receive("r", message);
  EXPECT_TRUE(reader_.holds("r", 1));
  reader_.drop("r");
  sender_.free("b");
  expect_all_back();
}

// Then its pidfd and its life line.
TEST_F(WatchesTest, ASenderSeesTheEndOfAReader) {
  for (const int nth : {3, 4}) {
    Peer sender;
    Peer reader;
    fail_watch(sender, nth);
    sender.allocate("b", kMiB, 1);
    reader.receive("r", sender.share("b"));
    EXPECT_TRUE(has_failed(sender, nth));
    sender.free("b");
    EXPECT_EQ(sender.stat("limbo"), static_cast<std::int64_t>(kMiB));
    reader.process().kill();
    EXPECT_TRUE(sender.becomes("leases_swept", 1)) << nth;
    EXPECT_TRUE(sender.becomes("limbo", 0));
    sender.expect_balance();
  }
}

}  // namespace
}  // namespace limbo::testing
