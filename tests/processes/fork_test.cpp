// Forks, exec and spawned programs; life lines that prove less; consumers that leave by a word.
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>

#include <fstream>

#include "ipc/owned_fd.h"
#include "tests/processes/sharing_support.h"

namespace limbo::testing {
namespace {

using std::chrono::milliseconds;

class ForkTest : public SharingTest {
 protected:
  void lend(Peer& reader, const std::string& name = "r") {
    sender_.allocate("b", kMiB, 1);
    reader.receive(name, sender_.share("b"));
    sender_.free("b");
  }
  // The one holder is in quarantine, and says so in these words.
  void expect_quarantine(const std::string& why) {
    std::vector<std::string> holders;
    EXPECT_TRUE(eventually([&] {
      holders = sender_.holders();
      return holders.size() == 1 && holders[0].find("quarantine") != std::string::npos &&
             holders[0].find(why) != std::string::npos;
    })) << why
        << (holders.empty() ? " (nobody holds anything)" : " is not in: " + holders[0]);
  }
};

// ---- forks --------------------------------------------------------------------------------------

TEST_F(ForkTest, AChildOfAForkChildOwnsNothingEither) {
  lend(reader_);
  EXPECT_EQ(reader_.use_in_fork_child(2), "forked_child");
  EXPECT_TRUE(reader_.holds("r", 1));
  reader_.drop("r");
  expect_all_back();
}

// A block of this very process, one that its parent has given back, and one whose owner has ended.
TEST_F(ForkTest, NothingThatWasReceivedCanBeUsedInAForkChild) {
  sender_.allocate("b", kMiB, 1);
  sender_.use_stream("reading");
  sender_.receive("own", sender_.share("b"));
  EXPECT_EQ(sender_.use_in_fork_child(), "forked_child");
  EXPECT_FALSE(sender_.orphaned("own"));
  sender_.drop("own");
  sender_.use_stream("default");
  sender_.free("b");

  lend(reader_, "held");
  lend(reader_, "given_back");
  reader_.release("given_back");
  EXPECT_EQ(reader_.use_in_fork_child(), "forked_child");
  EXPECT_FALSE(reader_.orphaned("held"));
  sender_.synchronize();  // what a killed process had queued goes with it
  sender_.process().kill();
  EXPECT_TRUE(eventually([&] { return reader_.orphaned("held"); }));
  EXPECT_EQ(reader_.use_in_fork_child(), "forked_child");
  EXPECT_TRUE(reader_.holds("held", 1));
  for (const char* name : {"held", "given_back"}) reader_.drop(name);
}

// Whatever the threads that a child does not have were doing: they receive and give back without a
// driver call between, so that one of them has a lock at many a fork.
TEST_F(ForkTest, AChildDropsWhatWasReceivedWhileThreadsReceive) {
  sender_.allocate("b", kMiB, 1);
  const std::string message = sender_.share("b");
  sender_.receive("own", message);
  reader_.receive("r", message);
  constexpr int kChildren = 100;
  EXPECT_EQ(sender_.drop_in_fork_children(kChildren, message), kChildren);
  EXPECT_EQ(reader_.drop_in_fork_children(10, message), 10);
  EXPECT_TRUE(reader_.holds("r", 1));
  reader_.drop("r");
  sender_.drop("own");
  sender_.free("b");
  expect_all_back();
}

// Each is a process of its own: what it holds goes with itself alone.
TEST_F(ForkTest, AFamilyForkedBeforeTheFirstUse) {
  sender_.allocate("b", kMiB, 1);
  ChildProcess family("fork_family");
  std::vector<pid_t> members;
  for (int member = 0; member < 3; ++member) {
    members.push_back(static_cast<pid_t>(std::stol(family.receive())));
    family.send(sender_.share("b"));
    family.expect("received");
  }
  sender_.free("b");
  EXPECT_EQ(members.back(), family.pid());
  EXPECT_EQ(sender_.stat("leases_connected"), 3);
  // The oldest first, then the youngest: neither keeps or ends what another holds.
  std::int64_t swept = 0;
  for (const int member : {2, 0, 1}) {
    EXPECT_GT(sender_.stat("limbo"), 0);
    ::kill(members[static_cast<std::size_t>(member)], SIGKILL);
    EXPECT_TRUE(sender_.becomes("leases_swept", ++swept));
    EXPECT_EQ(sender_.stat("claims_swept"), swept);
    EXPECT_EQ(sender_.stat("leases_connected"), 3 - swept);
    EXPECT_EQ(sender_.stat("leases_quarantined"), 0);
  }
  expect_all_back();
}

TEST_F(ForkTest, AForkChildKeepsItsParentsBlocksAlsoAfterAnExit) {
  lend(reader_);
  reader_.write_for("r", 99, milliseconds(60'000));
  const pid_t child = reader_.fork_idle_child();
  reader_.leave(0);
  EXPECT_TRUE(reader_.process().wait().success());
  expect_quarantine("fork child");
  EXPECT_EQ(sender_.stat("claims_swept"), 0);
  ::kill(child, SIGKILL);
  expect_all_back();
}

// A block that is lent on to a fork child's successor is nobody's business: only descriptors count.
TEST_F(ForkTest, AProgramThatAReaderStartedKeepsNothing) {
  lend(reader_);
  const pid_t program = reader_.spawn_idle_program();
  reader_.process().kill();
  expect_all_back();
  EXPECT_EQ(::kill(program, SIGKILL), 0) << "it lives on all the while";
}

// ---- exec ---------------------------------------------------------------------------------------

TEST_F(ForkTest, ASenderThatReplacesItselfIsGone) {
  sender_.allocate("b", kMiB, 5);
  sender_.synchronize();
  reader_.receive("r", sender_.share("b"));
  sender_.allocate("c", kMiB, 6);
  sender_.write_for("c", 7, milliseconds(60'000));
  const std::string unfinished = sender_.share("c");
  reader_.use_stream("side");
  reader_.receive("u", unfinished);
  const std::string late = sender_.share("c");
  sender_.send("exec_sleep");
  EXPECT_TRUE(eventually([&] { return reader_.orphaned("r"); }));
  reader_.synchronize();  // the wait for what will not come is over
  EXPECT_TRUE(reader_.orphaned("u"));
  EXPECT_TRUE(reader_.holds("r", 5));
  Peer stranger;
  EXPECT_EQ(error_of([&] { stranger.receive("late", late); }), "producer_exited");
  EXPECT_EQ(error_of([&] { reader_.receive("late", late); }), "producer_exited");
  reader_.use_stream("default");
  reader_.drop("r");
  reader_.drop("u");
  EXPECT_TRUE(reader_.becomes("pieces_mapped", 0));
  EXPECT_TRUE(sender_.process().running());
  sender_.process().kill();
}

// ---- life lines that prove less -----------------------------------------------------------------

// A file of the simulated driver that programs started meanwhile inherit: to them the driver has been
// started before the library was loaded.
class EarlierDriver {
 public:
  EarlierDriver() : file_(::memfd_create("limbo-sim-earlier", 0)) {}

 private:
  OwnedFd file_;
};

TEST_F(ForkTest, ALateLifeLineGetsAGraceTime) {
  std::optional<EarlierDriver> driver(std::in_place);
  Peer late;
  driver.reset();
  lend(late);
  late.process().kill();
  expect_quarantine("given 2 s");
  expect_all_back();
  EXPECT_EQ(sender_.stat("leases_swept"), 1);
}

// A number below the life line is given up by the program, and the driver takes it for what it opens
// first, or later: the line then closes before the driver's files do.
TEST_F(ForkTest, ADriverThatStartsUnderALowerNumberGetsAGraceTime) {
  reader_.call("open_driver_file_at connect.after_welcome 0");
  lend(reader_);
  reader_.process().kill();
  expect_quarantine("given 2 s");
  expect_all_back();
}

TEST_F(ForkTest, ADriverThatOpensALowerNumberLaterGetsAGraceTime) {
  sender_.allocate("large", 32 * kMiB, 1);
  lend(reader_);
  reader_.call("open_driver_file 0");
  reader_.receive("large", sender_.share("large"));  // another piece
  sender_.free("large");
  reader_.process().kill();
  expect_quarantine("given 2 s");
  expect_all_back();
}

TEST_F(ForkTest, AForceDoesNotWaitForAForkChild) {
  lend(reader_);
  const pid_t child = reader_.fork_idle_child();
  reader_.process().kill();
  expect_quarantine("fork child");
  EXPECT_EQ(sender_.reap(false), "0 0");
  EXPECT_GT(sender_.stat("limbo"), 0);
  EXPECT_EQ(sender_.reap(true), "1 1");
  EXPECT_EQ(sender_.stat("limbo"), 0);
  ::kill(child, SIGKILL);
}

// A child that had the driver's files before the life line was made does not hold the line.
TEST_F(ForkTest, WhatAChildFromBeforeTheLibraryMayUseIsKept) {
  std::optional<EarlierDriver> driver(std::in_place);
  ChildOptions options;
  options.wrapper = {"/bin/sh", "-c", "sleep 1000 >/dev/null 2>&1 & exec \"$0\" \"$@\""};
  Peer late(options);
  driver.reset();
  lend(late);
  const std::string pid = std::to_string(late.process().pid());
  std::ifstream children("/proc/" + pid + "/task/" + pid + "/children");
  pid_t child = 0;
  ASSERT_TRUE(children >> child);
  late.process().kill();
  expect_quarantine("before Limbo was loaded");
  EXPECT_EQ(sender_.reap(false), "0 0");
  EXPECT_EQ(sender_.stat("claims_swept"), 0);
  EXPECT_GT(sender_.stat("limbo"), 0);
  ::kill(child, SIGKILL);
  EXPECT_EQ(sender_.reap(false), "0 0") << "its end cannot be seen";
  EXPECT_EQ(sender_.reap(true), "1 1");
  expect_all_back();
}

// Nobody who lives is reaped, whatever is asked.
TEST_F(ForkTest, AForceLeavesTheLivingAlone) {
  lend(reader_);
  reader_.process().stop();
  EXPECT_EQ(sender_.reap(true), "0 0");
  reader_.process().resume();
  EXPECT_TRUE(reader_.holds("r", 1));
  EXPECT_EQ(reader_.reap(true), "0 0");  // it lends nothing
  reader_.drop("r");
  expect_all_back();
}

// Under MPS a process's work belongs to the server, which outlives it.
TEST_F(ForkTest, UnderMpsADeadReaderGetsAGraceTime) {
  Peer served(with({{"CUDA_MPS_PIPE_DIRECTORY", sandbox_.path().string()}}));
  lend(served);
  served.process().kill();
  expect_quarantine("given 2 s");
  expect_all_back();
}

// ---- leaving by a word --------------------------------------------------------------------------

// Nothing of it is left, so nobody waits for its fork child.
TEST_F(ForkTest, AReaderThatHoldsNothingLeavesAtItsExit) {
  reader_.set_option("import_cache_pieces", 0);
  lend(reader_);
  reader_.drop("r");
  EXPECT_TRUE(reader_.becomes("pieces_mapped", 0));
  const pid_t child = reader_.fork_idle_child();
  reader_.leave(0);
  EXPECT_TRUE(reader_.process().wait().success());
  EXPECT_TRUE(eventually(
      [&] { return sender_.stat("leases_connected") + sender_.stat("leases_quarantined") == 0; }));
  EXPECT_EQ(sender_.stat("leases_swept"), 0);
  ::kill(child, SIGKILL);
}

TEST_F(ForkTest, AConnectionThatCannotBeUsedIsGivenBackWithItsMessage) {
  sender_.allocate("b", kMiB, 1);
  const std::string message = sender_.share("b");
  sender_.free("b");
  reader_.set_fail_points("connect.after_welcome=error");
  EXPECT_EQ(error_of([&] { reader_.receive("r", message); }), "internal");
  EXPECT_TRUE(sender_.becomes("leases_connected", 0));
  expect_all_back();
  EXPECT_TRUE(sender_.becomes("exports_open", 0));
}

TEST_F(ForkTest, AMessageIsGivenBackWhereTheDriverRefusesTheTables) {
  LIMBO_NEEDS_SIMULATED_DEVICE();
  for (const char* fault : {"register:1=fail", "register:2=fail"}) {
    Peer reader(with({{"LIMBO_SIM_FAULTS", fault}}));
    sender_.allocate("b", kMiB, 1);
    const std::string message = sender_.share("b");
    sender_.free("b");
    EXPECT_EQ(error_of([&] { reader.receive("r", message); }), "device_error") << fault;
    expect_all_back();
    EXPECT_EQ(error_of([&] { reader.receive("r", message); }), "gone") << fault;
    lend(reader);  // by the same connection
    EXPECT_TRUE(sender_.becomes("leases_connected", 1)) << fault;
    reader.process().kill();
    EXPECT_TRUE(sender_.becomes("leases_connected", 0)) << fault;
    expect_all_back();
  }
}

}  // namespace
}  // namespace limbo::testing
