// Connections that end while both processes live, and senders that do not answer.
#include "ipc/channel.h"
#include "tests/processes/sharing_support.h"

namespace limbo::testing {
namespace {

class ConnectionTest : public SharingTest, public ::testing::WithParamInterface<const char*> {
 protected:
  Peer& cutter() { return std::string_view(GetParam()) == "sender" ? sender_ : reader_; }
};

// What is held stays held; who receives again has a new lease; the old one's claims end with it.
TEST_P(ConnectionTest, OldClaimsStandAndNewOnesGoByANewLease) {
  sender_.allocate("b", kMiB, 5);
  reader_.receive("old", sender_.share("b"));
  reader_.receive("older", sender_.share("b"));
  cutter().cut_connections();
  sender_.allocate("c", kMiB, 6);
  EXPECT_TRUE(eventually([&] {
    reader_.receive("new", sender_.share("c"));
    return sender_.stat("leases_connected") == 2;
  }));
  EXPECT_TRUE(reader_.holds("old", 5));
  EXPECT_TRUE(reader_.holds("new", 6));
  EXPECT_FALSE(reader_.orphaned("old"));
  sender_.free("b");
  sender_.free("c");
  EXPECT_EQ(sender_.stat("leases_quarantined"), 0);
  EXPECT_GT(sender_.stat("limbo"), 0);

  // The old lease's releases are seen without a connection.
  EXPECT_TRUE(sender_.becomes("held_claims", 3));
  reader_.drop("older");
  EXPECT_TRUE(sender_.becomes("held_claims", 2));
  EXPECT_TRUE(reader_.holds("old", 5));

  reader_.process().kill();
  EXPECT_TRUE(sender_.becomes("leases_swept", 2));
  EXPECT_EQ(sender_.stat("claims_swept"), 2);
  expect_all_back();
}

// A process is promised the block, whatever its leases: who comes again by another one is no second.
TEST_P(ConnectionTest, WhoComesAgainByANewLeaseUsesUpNoOthersPromise) {
  Peer third;
  sender_.allocate("b", kMiB, 5);
  const std::string message = sender_.share("b", -1, 2);
  sender_.free("b");
  reader_.receive("first", message);
  cutter().cut_connections();
  EXPECT_TRUE(eventually([&] {
    reader_.receive("again", message);
    return sender_.stat("leases_connected") == 2;
  }));
  EXPECT_TRUE(reader_.holds("again", 5));
  reader_.drop("again");
  reader_.drop("first");
  EXPECT_TRUE(sender_.becomes("in_flight", 1));
  EXPECT_TRUE(sender_.becomes("held_claims", 0));
  EXPECT_EQ(sender_.stat("in_flight"), 1);
  third.receive("r", message);
  EXPECT_TRUE(third.holds("r", 5));
  third.drop("r");
  expect_all_back();
}

// Cut again and again, with nothing held, nothing gathers at the reader.
TEST_P(ConnectionTest, CutAgainAndAgainAReaderGathersNothing) {
  for (int round = 0; round < 5; ++round) {
    sender_.allocate("b", kMiB, 5);
    reader_.receive("r", sender_.share("b"));
    EXPECT_TRUE(reader_.holds("r", 5));
    sender_.free("b");
    reader_.drop("r");
    cutter().cut_connections();
    EXPECT_TRUE(reader_.becomes("pieces_mapped", 0))
        << "the cut is seen, and nothing is kept for it";
    expect_all_back();
  }
}

// A thread has the connection in hand, has claimed nothing yet, and is slow. Nothing of it is held, so
// its tables go: the claim is made by the next one.
using GivenUpConnectionTest = SharingTest;

TEST_F(GivenUpConnectionTest, ItTakesNoClaimsAnyMore) {
  sender_.allocate("b", kMiB, 5);
  const std::string message = sender_.share("b");
  reader_.receive("r", sender_.share("b"));
  reader_.drop("r");
  EXPECT_TRUE(sender_.becomes("held_claims", 0));
  reader_.set_fail_points("receive.before_claim=delay:1000@1");
  reader_.send("receive r " + message + " -1");
  sender_.cut_connections();
  EXPECT_EQ(error_of([&] { (void)reader_.answer(); }), "none");
  EXPECT_TRUE(reader_.holds("r", 5));
  EXPECT_EQ(sender_.stat("leases_connected"), 2);
  reader_.drop("r");
  sender_.free("b");
  expect_all_back();
}

std::string cutter_name(const ::testing::TestParamInfo<const char*>& info) {
  return info.param;
}

INSTANTIATE_TEST_SUITE_P(ByEither, ConnectionTest, ::testing::Values("sender", "reader"),
                         cutter_name);

class SilentSenderTest : public SharingTest {};

TEST_F(SilentSenderTest, AStoppedSenderIsCalledSo) {
  sender_.allocate("b", kMiB, 1);
  const std::string message = sender_.share("b");
  sender_.process().stop();
  std::string text;
  try {
    reader_.receive("r", message);
  } catch (const PeerError& failure) {
    text = failure.what();
  }
  EXPECT_NE(text.find("no_channel"), std::string::npos) << text;
  EXPECT_NE(text.find(std::to_string(sender_.process().pid()) + " is stopped"), std::string::npos)
      << text;
  sender_.process().resume();
  // Whom it did not answer has no lease, or not for long, and may come again.
  reader_.receive("r", message);
  EXPECT_TRUE(sender_.becomes("leases_connected", 1));
  EXPECT_TRUE(reader_.holds("r", 1));
  reader_.drop("r");
  sender_.free("b");
  expect_all_back();
}

// One of them asks, and the others have its outcome: not one deadline after the other. None of their
// messages stays promised.
TEST_F(SilentSenderTest, ThreadsWaitForAStoppedSenderTogether) {
  constexpr int kThreads = 4;
  sender_.allocate("b", kMiB, 1);
  std::string command = "receive_at_once";
  std::string refused;
  for (int thread = 0; thread < kThreads; ++thread) {
    command += " -1 " + sender_.share("b");
    refused += std::string(thread == 0 ? "" : " ") + "no_channel";
  }
  sender_.process().stop();
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_EQ(reader_.call(command), refused);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, 2 * kHandshakeDeadline);
  sender_.process().resume();
  sender_.free("b");
  expect_all_back();
  EXPECT_TRUE(sender_.becomes("exports_open", 0));
  EXPECT_TRUE(sender_.becomes("leases_connected", 0));
}

TEST_F(SilentSenderTest, ASenderKilledWhileItIsStoppedHasEnded) {
  sender_.allocate("b", kMiB, 1);
  const std::string message = sender_.share("b");
  sender_.process().stop();
  reader_.send("receive r " + message + " -1");
  sender_.process().kill();
  EXPECT_EQ(error_of([&] { (void)reader_.answer(); }), "producer_exited");
}

}  // namespace
}  // namespace limbo::testing
