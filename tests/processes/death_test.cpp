// Processes die, stop and fork while they hold each other's memory.
#include <signal.h>

#include <filesystem>

#include "tests/processes/sharing_support.h"

namespace limbo::testing {
namespace {

using std::chrono::milliseconds;

class DeathTest : public SharingTest {
 protected:
  // The reader gets `count` blocks and the sender frees them.
  void lend(Peer& reader, int count, std::size_t size_bytes = kMiB) {
    for (int index = 0; index < count; ++index) {
      sender_.allocate("b", size_bytes, 1);
      reader.receive("r" + std::to_string(index), sender_.share("b"));
      sender_.free("b");
    }
  }
};

// ---- readers ------------------------------------------------------------------------------------

TEST_F(DeathTest, AKilledReadersBlocksComeBack) {
  lend(reader_, 10);
  EXPECT_GT(sender_.stat("limbo"), 0);
  reader_.process().kill();
  expect_all_back();
  EXPECT_EQ(sender_.stat("claims_swept"), 10);
  EXPECT_EQ(sender_.stat("leases_swept"), 1);
  EXPECT_TRUE(sender_.holders().empty());
}

TEST_F(DeathTest, AReaderThatEndsWithoutCleaningUpGivesEverythingBack) {
  lend(reader_, 10);
  reader_.leave_at_once(0);
  EXPECT_TRUE(reader_.process().wait().success());
  expect_all_back();
}

TEST_F(DeathTest, AReaderThatExitsGivesEverythingBack) {
  lend(reader_, 10);
  reader_.leave(0);
  EXPECT_TRUE(reader_.process().wait().success());
  EXPECT_EQ(reader_.process().output(), "");
  expect_all_back();
}

// What is dead and not reaped by its parent holds nothing.
TEST_F(DeathTest, AZombieHoldsNothing) {
  lend(reader_, 3);
  reader_.process().kill_unreaped();
  expect_all_back();
  (void)reader_.process().wait();
}

TEST_F(DeathTest, MemoryIsTheSameAfterTenKilledReaders) {
  std::int64_t reserved = 0;
  for (int round = 0; round < 10; ++round) {
    Peer reader;
    lend(reader, 1, 64 * kMiB);
    reader.process().kill();
    expect_all_back();
    if (round == 0) reserved = sender_.stat("reserved");
    EXPECT_EQ(sender_.stat("reserved"), reserved);
  }
  EXPECT_EQ(sender_.stat("leases_swept"), 10);
}

TEST_F(DeathTest, AKilledReadersKernelIsWaitedFor) {
  lend(reader_, 1);
  reader_.write_for("r0", 99, milliseconds(2000));
  reader_.process().kill();
  expect_all_back();
  sender_.allocate("canary", kMiB, 42);
  sender_.synchronize();
  for (int look = 0; look < 20; ++look) ASSERT_TRUE(sender_.holds("canary", 42));
  sender_.free("canary");
}

TEST_F(DeathTest, AKilledReadersForkChildKeepsItsBlocksInQuarantine) {
  lend(reader_, 2);
  reader_.write_for("r0", 99, milliseconds(60'000));
  const pid_t child = reader_.fork_idle_child();
  reader_.process().kill();
  EXPECT_TRUE(sender_.becomes("leases_quarantined", 1));
  const auto holders = sender_.holders();
  ASSERT_EQ(holders.size(), 1U);
  EXPECT_NE(holders[0].find("quarantine"), std::string::npos) << holders[0];
  EXPECT_NE(holders[0].find("fork child"), std::string::npos) << holders[0];
  EXPECT_EQ(sender_.stat("claims_swept"), 0);
  EXPECT_GT(sender_.stat("limbo"), 0);
  ::kill(child, SIGKILL);
  expect_all_back();
  sender_.allocate("canary", kMiB, 42);
  sender_.synchronize();
  for (int look = 0; look < 20; ++look) ASSERT_TRUE(sender_.holds("canary", 42));
  sender_.free("canary");
}

TEST_F(DeathTest, AStoppedReaderIsNotDead) {
  sender_.set_option("message_time_limit_ms", 1);
  lend(reader_, 2);
  reader_.process().stop();
  // Long enough for every limit that there is, told by the sender's own time limit.
  sender_.allocate("other", kMiB, 1);
  (void)sender_.share("other", 200);
  sender_.free("other");
  EXPECT_TRUE(sender_.becomes("expired", 1));
  EXPECT_EQ(sender_.stat("claims_swept"), 0);
  EXPECT_GT(sender_.stat("limbo"), 0);
  reader_.process().resume();
  EXPECT_TRUE(reader_.holds("r1", 1));
  reader_.drop("r0");
  reader_.drop("r1");
  expect_all_back();
}

TEST_F(DeathTest, OneReadersDeathLeavesTheOthersAlone) {
  Peer other;
  sender_.allocate("b", kMiB, 5);
  reader_.receive("r", sender_.share("b"));
  other.receive("r", sender_.share("b"));
  sender_.free("b");
  reader_.process().kill();
  EXPECT_TRUE(sender_.becomes("leases_swept", 1));
  EXPECT_GT(sender_.stat("limbo"), 0);
  EXPECT_TRUE(other.holds("r", 5));
  other.drop("r");
  expect_all_back();
}

// ---- senders ------------------------------------------------------------------------------------

TEST_F(DeathTest, AKilledSendersBlocksStayReadable) {
  sender_.allocate("b", kMiB, 5);
  sender_.allocate("c", kMiB, 6);
  sender_.synchronize();  // what a killed process had queued goes with it
  reader_.receive("r", sender_.share("b"));
  const std::string late = sender_.share("c");
  EXPECT_FALSE(reader_.orphaned("r"));
  sender_.process().kill();
  // Until it is noticed, what is mapped already can still be claimed.
  EXPECT_TRUE(eventually([&] { return reader_.orphaned("r"); }));
  EXPECT_EQ(error_of([&] { reader_.receive("late", late); }), "producer_exited");
  EXPECT_TRUE(reader_.holds("r", 5));
  // and so it is for somebody who never knew it
  Peer stranger;
  EXPECT_EQ(error_of([&] { stranger.receive("late", late); }), "producer_exited");
  reader_.release("r");
  EXPECT_TRUE(reader_.becomes("pieces_mapped", 0));
  // The next sender starts where nothing is left of the first.
  Peer next;
  next.allocate("b", kMiB, 7);
  reader_.receive("r", next.share("b"));
  EXPECT_TRUE(reader_.holds("r", 7));
  reader_.drop("r");
  next.free("b");
  EXPECT_TRUE(next.becomes("limbo", 0));
}

TEST_F(DeathTest, AFirstOpenAfterTheSendersEndSaysSo) {
  sender_.allocate("b", kMiB, 5);
  sender_.synchronize();
  reader_.receive("r", sender_.share("b"));
  sender_.allocate("c", 20 * kMiB, 6);
  const std::string message = sender_.share("c");
  reader_.set_fail_points("receive.after_claim=delay:1000");
  reader_.send("receive late " + message + " -1");
  EXPECT_TRUE(sender_.becomes("held_claims", 2));
  sender_.process().kill();
  EXPECT_EQ(error_of([&] { (void)reader_.answer(); }), "producer_exited");
  EXPECT_TRUE(reader_.holds("r", 5));
  reader_.release("r");
}

TEST_F(DeathTest, AWaitForADeadSenderIsCompleted) {
  sender_.allocate("b", kMiB, 5);
  sender_.write_for("b", 5, milliseconds(60'000));
  reader_.receive("r", sender_.share("b"));
  sender_.process().kill();
  reader_.synchronize();  // comes back
  EXPECT_TRUE(reader_.orphaned("r"));
  reader_.release("r");
  EXPECT_TRUE(reader_.becomes("releases_pending", 0));
}

TEST_F(DeathTest, AKilledSendersForkChildAnswersNobody) {
  sender_.allocate("b", kMiB, 5);
  const std::string message = sender_.share("b");
  const pid_t child = sender_.fork_idle_child();
  sender_.process().kill();
  EXPECT_EQ(error_of([&] { reader_.receive("r", message); }), "producer_exited");
  ::kill(child, SIGKILL);
}

TEST_F(DeathTest, ASenderWaitsAtItsExitForItsLastMessage) {
  sender_.allocate("b", kMiB, 5);
  const std::string message = sender_.share("b");
  sender_.leave(0);
  reader_.receive("r", message);
  EXPECT_TRUE(sender_.process().wait().success());
  EXPECT_EQ(sender_.process().output(), "");
  EXPECT_TRUE(reader_.holds("r", 5));
  EXPECT_FALSE(std::filesystem::exists(sandbox_.runtime_dir()) &&
               !std::filesystem::is_empty(sandbox_.runtime_dir()));
}

// What the reader holds was still to be written.
TEST_F(DeathTest, ASenderWaitsAtItsExitForTheWorkBeforeItsLastMessage) {
  sender_.allocate("b", kMiB, 5);
  sender_.write_for("b", 6, milliseconds(500));
  reader_.receive("r", sender_.share("b"));
  sender_.free("b");
  sender_.leave(0);
  EXPECT_TRUE(sender_.process().wait().success());
  EXPECT_TRUE(reader_.holds("r", 6));
}

TEST_F(DeathTest, ASendersExitDoesNotWaitLongerThanTheOptionSays) {
  sender_.set_option("exit_drain_ms", 100);
  sender_.allocate("b", kMiB, 5);
  const std::string message = sender_.share("b");
  sender_.leave(0);
  EXPECT_TRUE(sender_.process().wait(milliseconds(4000)).success());
  EXPECT_EQ(error_of([&] { reader_.receive("r", message); }), "producer_exited");
}

TEST_F(DeathTest, ExitWithLimboAndALivingReaderIsQuiet) {
  sender_.allocate("b", kMiB, 5);
  reader_.receive("r", sender_.share("b"));
  sender_.free("b");
  sender_.leave(0);
  EXPECT_TRUE(sender_.process().wait().success());
  EXPECT_EQ(sender_.process().output(), "");
  EXPECT_TRUE(reader_.holds("r", 5));
  reader_.leave(0);
  EXPECT_TRUE(reader_.process().wait().success());
  EXPECT_EQ(reader_.process().output(), "");
}

// ---- forks --------------------------------------------------------------------------------------

TEST_F(DeathTest, AForkChildOwnsNothingOfItsParents) {
  lend(reader_, 2);
  EXPECT_EQ(reader_.use_in_fork_child(), "forked_child");
  EXPECT_GT(sender_.stat("limbo"), 0);
  EXPECT_TRUE(reader_.holds("r0", 1));
  sender_.allocate("b", kMiB, 1);
  (void)sender_.share("b", 0);
  EXPECT_EQ(sender_.use_in_fork_child(), "forked_child");
  reader_.drop("r0");
  reader_.drop("r1");
  sender_.free("b");
  expect_all_back();
}

TEST_F(DeathTest, AChildForkedBeforeTheFirstUseIsAProcessOfItsOwn) {
  ChildProcess server("fork_server");
  const auto child = static_cast<pid_t>(std::stol(server.receive()));
  sender_.allocate("b", kMiB, 1);
  server.send(sender_.share("b"));
  server.expect("received");
  sender_.free("b");
  EXPECT_GT(sender_.stat("limbo"), 0);
  // Its parent never used Limbo, and does not keep what the child held.
  ::kill(child, SIGKILL);
  expect_all_back();
  EXPECT_TRUE(server.running());
}

// ---- exec ---------------------------------------------------------------------------------------

TEST_F(DeathTest, AReaderThatReplacesItselfIsGoneAfterAGraceTime) {
  lend(reader_, 1);
  reader_.send("exec_sleep");
  EXPECT_TRUE(sender_.becomes("leases_quarantined", 1));
  const auto holders = sender_.holders();
  ASSERT_EQ(holders.size(), 1U);
  EXPECT_NE(holders[0].find("exec"), std::string::npos) << holders[0];
  expect_all_back();
  EXPECT_TRUE(reader_.process().running());
}

}  // namespace
}  // namespace limbo::testing
