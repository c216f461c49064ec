// Names: what one process publishes, others find and acquire; and what anybody may ask.
#include <signal.h>
#include <sys/wait.h>

#include <algorithm>
#include <filesystem>

#include "allocator/error.h"
#include "ipc/sharing.h"
#include "tests/processes/sharing_support.h"

namespace limbo::testing {
namespace {

namespace fs = std::filesystem;

class NamesProcessTest : public SharingTest {
 protected:
  // Of the names and processes of this test; those of others come and go.
  [[nodiscard]] bool is_ours(const LendingProcess& process) const {
    return process.directory.starts_with(sandbox_.path().string());
  }
  [[nodiscard]] std::vector<std::string> names() const {
    std::vector<std::string> found;
    for (const PublishedName& published : process_sharing().names()) {
      if (is_ours(published.owner)) found.push_back(published.name);
    }
    return found;
  }
  [[nodiscard]] LendingProcess process_of(Peer& peer) const {
    for (const LendingProcess& process : process_sharing().processes()) {
      if (is_ours(process) && process.pid == peer.process().pid()) return process;
    }
    ADD_FAILURE() << "process " << peer.process().pid() << " is not listed";
    return {};
  }
  [[nodiscard]] fs::path link(const std::string& name) const {
    return fs::path(sandbox_.runtime_dir()) / "names" / name;
  }
  // What there is in the folder, in order; a link that is being made as "*.new".
  [[nodiscard]] std::vector<std::string> entries() const {
    std::vector<std::string> found;
    for (const fs::directory_entry& entry : fs::directory_iterator(link("").parent_path())) {
      const fs::path name = entry.path().filename();
      found.push_back(name.extension() == ".new" ? "*.new" : name.string());
    }
    std::sort(found.begin(), found.end());
    return found;
  }
};

TEST_F(NamesProcessTest, WhatIsPublishedIsAcquiredByAnotherProcess) {
  sender_.allocate("a", kMiB, 7);
  sender_.publish("weights", "a");
  EXPECT_EQ(names(), std::vector<std::string>{"weights"});
  reader_.receive("x", reader_.acquire("weights"));
  EXPECT_TRUE(reader_.holds("x", 7));
  reader_.receive("y", reader_.acquire("weights"));  // as often as anybody likes
  EXPECT_TRUE(sender_.becomes("held_claims", 2));
  EXPECT_EQ(sender_.stat("in_flight"), 0);

  EXPECT_TRUE(sender_.unpublish("weights"));
  EXPECT_FALSE(sender_.unpublish("weights"));
  EXPECT_TRUE(names().empty());
  EXPECT_EQ(error_of([&] { (void)reader_.acquire("weights"); }), "no_such_name");
  sender_.free("a");
  EXPECT_TRUE(reader_.holds("x", 7));  // what was acquired stays
  EXPECT_EQ(sender_.stat("limbo"), static_cast<std::int64_t>(kMiB));
  reader_.release("x");
  reader_.drop("y");
  expect_all_back();
}

TEST_F(NamesProcessTest, ThePublisherAcquiresItsOwn) {
  sender_.allocate("a", kMiB, 7);
  sender_.publish("weights", "a");
  sender_.receive("self", sender_.acquire("weights"));
  EXPECT_TRUE(sender_.holds("self", 7));
  sender_.drop("self");
  EXPECT_TRUE(sender_.unpublish("weights"));
  sender_.free("a");
  expect_all_back();
}

TEST_F(NamesProcessTest, ANameIsTakenWhileItsOwnerLives) {
  sender_.allocate("a", kMiB, 7);
  reader_.allocate("b", kMiB, 8);
  sender_.publish("weights", "a");
  try {
    reader_.publish("weights", "b");
    FAIL() << "one name of two";
  } catch (const PeerError& error) {
    EXPECT_EQ(error.code(), "name_taken");
    EXPECT_NE(std::string(error.what()).find(std::to_string(sender_.process().pid())),
              std::string::npos)
        << error.what();
  }
  EXPECT_EQ(error_of([&] { sender_.publish("weights", "a"); }), "name_taken");
  EXPECT_FALSE(reader_.unpublish("weights"));  // it has published nothing
  EXPECT_EQ(names(), std::vector<std::string>{"weights"});
  EXPECT_TRUE(sender_.unpublish("weights"));
  reader_.publish("weights", "b");
  sender_.receive("x", sender_.acquire("weights"));
  EXPECT_TRUE(sender_.holds("x", 8));
  sender_.drop("x");
  EXPECT_TRUE(reader_.unpublish("weights"));
}

TEST_F(NamesProcessTest, ANameOfTheDeadIsPassedOverAndReplaced) {
  Peer owner;
  owner.allocate("a", kMiB, 7);
  owner.publish("weights", "a");
  owner.process().kill();
  EXPECT_TRUE(fs::is_symlink(link("weights")));  // nobody has tidied up
  EXPECT_TRUE(names().empty());
  EXPECT_EQ(error_of([&] { (void)reader_.acquire("weights"); }), "no_such_name");
  sender_.allocate("b", kMiB, 8);
  sender_.publish("weights", "b");
  reader_.receive("x", reader_.acquire("weights"));
  EXPECT_TRUE(reader_.holds("x", 8));
  reader_.drop("x");
  EXPECT_TRUE(sender_.unpublish("weights"));
}

TEST_F(NamesProcessTest, WhoDiesWhilePublishingLeavesNothingToTheNext) {
  Peer dead;
  dead.allocate("a", kMiB, 7);
  dead.set_fail_points("names.before_rename=crash");
  dead.send("publish weights a");
  EXPECT_TRUE(dead.process().wait().signalled);
  EXPECT_EQ(entries(), (std::vector<std::string>{"*.new", ".lock"}));
  sender_.allocate("b", kMiB, 8);
  sender_.publish("weights", "b");
  EXPECT_EQ(entries(), (std::vector<std::string>{".lock", "weights"}));
  EXPECT_TRUE(sender_.unpublish("weights"));
}

TEST_F(NamesProcessTest, AProcessThatExitsTakesItsNamesAway) {
  Peer owner;
  owner.allocate("a", kMiB, 7);
  owner.publish("weights", "a");
  owner.send("leave 0");
  EXPECT_TRUE(owner.process().wait().success());
  EXPECT_FALSE(fs::is_symlink(link("weights")));
}

TEST_F(NamesProcessTest, MemoryThatIsFreedWhilePublishedIsGoneAndNotAnothers) {
  sender_.allocate("a", kMiB, 7);
  sender_.publish("weights", "a");
  sender_.free("a");
  sender_.allocate("b", kMiB, 8);
  EXPECT_EQ(sender_.stat("limbo"), static_cast<std::int64_t>(kMiB));
  EXPECT_EQ(error_of([&] { (void)reader_.acquire("weights"); }), "gone");
  EXPECT_EQ(error_of([&] { (void)sender_.acquire("weights"); }), "gone");
  EXPECT_TRUE(sender_.unpublish("weights"));
  sender_.free("b");
  expect_all_back();
}

// Its send is taken back: nobody will open it.
TEST_F(NamesProcessTest, WhoeverDoesNotWaitForTheAnswerLeavesNothingInFlight) {
  sender_.allocate("a", kMiB, 7);
  sender_.publish("weights", "a");
  const std::int64_t withdrawn = sender_.stat("withdrawn");
  sender_.set_fail_points("acquire.after_share=delay:1500");
  EXPECT_EQ(error_of([&] { (void)reader_.acquire("weights"); }), "no_channel");
  EXPECT_TRUE(sender_.becomes("withdrawn", withdrawn + 1));
  EXPECT_EQ(sender_.stat("in_flight"), 0);
  EXPECT_TRUE(sender_.unpublish("weights"));
  sender_.free("a");
  expect_all_back();
}

TEST_F(NamesProcessTest, AStoppedOwnerKeepsItsNameAndIsSaidNotToAnswer) {
  sender_.allocate("a", kMiB, 7);
  sender_.publish("weights", "a");
  reader_.allocate("b", kMiB, 8);
  sender_.process().stop();
  EXPECT_EQ(error_of([&] { (void)reader_.acquire("weights"); }), "no_channel");
  EXPECT_EQ(error_of([&] { reader_.publish("weights", "b"); }), "name_taken");
  sender_.process().resume();
  EXPECT_TRUE(sender_.unpublish("weights"));
  // What the stopped one was asked it has answered to nobody by now, or will.
  EXPECT_TRUE(sender_.becomes("in_flight", 0));
}

TEST_F(NamesProcessTest, WhoStopsWithTheLockMakesOthersBusyAndNotWaitForEver) {
  sender_.allocate("a", kMiB, 7);
  reader_.allocate("b", kMiB, 8);
  sender_.set_fail_points("names.after_look=stop");
  sender_.send("publish weights a");
  siginfo_t stopped{};
  ASSERT_EQ(::waitid(P_PID, static_cast<id_t>(sender_.process().pid()), &stopped,
                     WSTOPPED | WEXITED | WNOWAIT),
            0);
  EXPECT_EQ(error_of([&] { reader_.publish("other", "b"); }), "busy");
  sender_.process().resume();
  (void)sender_.answer();
  reader_.publish("other", "b");
  EXPECT_EQ(names(), (std::vector<std::string>{"other", "weights"}));
  EXPECT_TRUE(sender_.unpublish("weights"));
  EXPECT_TRUE(reader_.unpublish("other"));
}

TEST_F(NamesProcessTest, NamesThatCannotBeAreRefusedEverywhere) {
  sender_.allocate("a", kMiB, 7);
  const std::string longest(200, 'n');
  for (const std::string& bad : {std::string("a/b"), std::string(".a"), longest + "n"}) {
    EXPECT_EQ(error_of([&] { sender_.publish(bad, "a"); }), "bad_argument") << bad;
    EXPECT_EQ(error_of([&] { (void)sender_.unpublish(bad); }), "bad_argument") << bad;
    EXPECT_EQ(error_of([&] { (void)reader_.acquire(bad); }), "bad_argument") << bad;
  }
  sender_.publish(longest, "a");
  reader_.receive("x", reader_.acquire(longest));
  reader_.drop("x");
  EXPECT_TRUE(sender_.unpublish(longest));
}

// ---- what anybody may ask -------------------------------------------------------------------

TEST_F(NamesProcessTest, ListsComeInParts) {
  sender_.allocate("a", kMiB, 7);
  std::vector<std::string> published;
  for (int i = 0; i < 60; ++i) {
    published.push_back(std::string(150, 'n') + std::to_string(100 + i));
    sender_.publish(published.back(), "a");
  }
  EXPECT_EQ(process_sharing().published_by(process_of(sender_)), published);
  EXPECT_EQ(names(), published);
  for (const std::string& name : published) EXPECT_TRUE(sender_.unpublish(name));
  EXPECT_TRUE(process_sharing().published_by(process_of(sender_)).empty());
}

TEST_F(NamesProcessTest, HoldersAreToldToAnybody) {
  sender_.allocate("a", kMiB, 7);
  reader_.receive("x", sender_.share("a"));
  const LendingProcess lender = process_of(sender_);
  std::vector<Holder> holders;
  ASSERT_TRUE(eventually([&] {
    holders = process_sharing().holders_of(lender);
    return holders.size() == 1 && holders[0].claims == 1;
  }));
  EXPECT_EQ(holders[0].pid, reader_.process().pid());
  EXPECT_EQ(holders[0].state, Holder::State::kConnected);
  EXPECT_EQ(holders[0].bytes, kMiB);
  EXPECT_EQ(holders[0].mapped_pieces, 1U);
  reader_.drop("x");
}

TEST_F(NamesProcessTest, ReapingIsAskedForFromOutside) {
  sender_.allocate("a", kMiB, 7);
  Peer dead;
  dead.receive("x", sender_.share("a"));
  EXPECT_TRUE(sender_.becomes("held_claims", 1));
  const pid_t child = dead.fork_idle_child();  // its GPU work may go on
  dead.process().kill();
  const LendingProcess lender = process_of(sender_);
  EXPECT_TRUE(sender_.becomes("leases_quarantined", 1));
  EXPECT_EQ(process_sharing().reap_in(lender, false).leases, 0U);
  EXPECT_EQ(sender_.stat("held_claims"), 1);
  const Reaped reaped = process_sharing().reap_in(lender, true);
  EXPECT_EQ(reaped.leases, 1U);
  EXPECT_EQ(reaped.claims, 1U);
  EXPECT_EQ(sender_.stat("held_claims"), 0);
  ::kill(child, SIGKILL);
}

TEST_F(NamesProcessTest, ADeadProcessIsNotListedAndCannotBeAsked) {
  Peer lender;
  lender.allocate("a", kMiB, 7);
  const LendingProcess process = process_of(lender);
  lender.process().kill();
  for (const LendingProcess& listed : process_sharing().processes()) EXPECT_NE(listed, process);
  try {
    (void)process_sharing().holders_of(process);
    FAIL() << "a dead process answered";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kProducerExited);
  }
}

}  // namespace
}  // namespace limbo::testing
