// Messages that were sent on and that nobody opens: taken back by their sender, or never seen by it.
#include "tests/processes/sharing_support.h"

namespace limbo::testing {
namespace {

using std::chrono::milliseconds;

// sender_ owns, reader_ forwards, third_ opens what was sent on.
class SentOnMessagesTest : public SharingTest {
 protected:
  void TearDown() override {
    third_.expect_balance();
    SharingTest::TearDown();
  }

  Peer third_;
};

// ---- never seen by who asked for it ------------------------------------------------------------

// What the owner has made for it is in its connection, unread.
TEST_F(SentOnMessagesTest, AnAnswerThatADeadForwarderHasNotReadIsWithdrawn) {
  sender_.allocate("b", kMiB, 7);
  Peer forwarder;
  forwarder.receive("r", sender_.share("b"));
  const std::int64_t withdrawn = sender_.stat("withdrawn");
  sender_.set_fail_points("forward.before_answer=delay:300");
  forwarder.send("share r -1 1");
  EXPECT_TRUE(eventually([&] { return sender_.passed("forward.before_answer") == 1; }));
  forwarder.process().stop();
  sender_.reap(false);  // behind the answer
  EXPECT_EQ(sender_.stat("forwards"), 1);
  EXPECT_EQ(sender_.stat("withdrawn"), withdrawn);
  EXPECT_EQ(sender_.stat("in_flight"), 1);
  forwarder.process().kill();
  EXPECT_TRUE(sender_.becomes("withdrawn", withdrawn + 1));
  EXPECT_EQ(sender_.stat("in_flight"), 0);
  sender_.free("b");
  expect_all_back();
}

// It dies between hearing and saying so, or right behind that; then it may have told others.
TEST_F(SentOnMessagesTest, WhatWasHeardOfStaysOpenAndWhatWasNotIsWithdrawn) {
  sender_.allocate("b", kMiB, 7);
  const std::int64_t withdrawn = sender_.stat("withdrawn");
  for (const char* point : {"sendon.after_answer", "sendon.after_heard"}) {
    Peer forwarder;
    forwarder.receive("r", sender_.share("b"));
    forwarder.set_fail_points(std::string(point) + "=crash");
    EXPECT_FALSE(forwarder.survives("share r 300 1"));
  }
  EXPECT_TRUE(sender_.becomes("leases_swept", 2));
  EXPECT_TRUE(sender_.becomes("withdrawn", withdrawn + 1));
  EXPECT_EQ(sender_.stat("in_flight"), 1);
  Peer forwarder;
  forwarder.receive("r", sender_.share("b"));
  const std::string on = forwarder.share("r");
  forwarder.process().kill();
  EXPECT_TRUE(sender_.becomes("leases_swept", 3));
  third_.receive("t", on);
  EXPECT_TRUE(third_.holds("t", 7));
  third_.drop("t");
  EXPECT_EQ(sender_.stat("withdrawn"), withdrawn + 1);
  sender_.free("b");
  expect_all_back();  // when the time of what was heard of is over
}

TEST_F(SentOnMessagesTest, AMessageThatADeadAcquirerHasNotReadIsWithdrawn) {
  sender_.allocate("b", kMiB, 7);
  sender_.publish("weights", "b");
  const std::int64_t withdrawn = sender_.stat("withdrawn");
  Peer acquirer;
  sender_.set_fail_points("acquire.after_share=delay:300");
  acquirer.send("acquire weights");
  EXPECT_TRUE(eventually([&] { return sender_.passed("acquire.after_share") == 1; }));
  acquirer.process().stop();
  sender_.reap(false);  // behind the answer's making
  sender_.reap(false);  // behind its sending
  EXPECT_EQ(sender_.stat("in_flight"), 1);
  EXPECT_EQ(sender_.stat("withdrawn"), withdrawn);
  acquirer.process().kill();
  EXPECT_TRUE(sender_.becomes("withdrawn", withdrawn + 1));
  EXPECT_EQ(sender_.stat("in_flight"), 0);
  EXPECT_TRUE(sender_.unpublish("weights"));
  sender_.free("b");
  expect_all_back();
}

// One that is stopped for longer than it waits itself: its error is the truth.
TEST_F(SentOnMessagesTest, AMessageThatCameTooLateForItsAcquirerIsWithdrawn) {
  sender_.allocate("b", kMiB, 7);
  sender_.publish("weights", "b");
  const std::int64_t withdrawn = sender_.stat("withdrawn");
  sender_.set_fail_points("acquire.after_share=delay:1200");
  EXPECT_EQ(error_of([&] { (void)third_.acquire("weights"); }), "no_channel");
  EXPECT_TRUE(sender_.becomes("withdrawn", withdrawn + 1));
  sender_.set_fail_points("");
  const std::string message = third_.acquire("weights");
  third_.receive("t", message);
  EXPECT_TRUE(third_.holds("t", 7));
  third_.drop("t");
  EXPECT_TRUE(sender_.unpublish("weights"));
  sender_.free("b");
  expect_all_back();
}

// It is heard of, and its sender has ended: what is left is its time, which the owner bounds.
TEST_F(SentOnMessagesTest, ADeadForwardersMessageLastsAsLongAsItsOwnersAtMost) {
  constexpr std::int64_t kTenYearsMs = 10LL * 365 * 24 * 60 * 60 * 1000;
  sender_.allocate("b", kMiB, 7);
  Peer forwarder;
  forwarder.receive("r", sender_.share("b", 300));
  const std::string on = forwarder.share("r", kTenYearsMs);
  const std::string forgotten = forwarder.share("r", kTenYearsMs);
  forwarder.process().kill();
  EXPECT_TRUE(sender_.becomes("leases_swept", 1));
  third_.receive("t", on);  // in time: its owner has not let go
  sender_.free("b");
  EXPECT_TRUE(sender_.becomes("expired", 1));
  EXPECT_EQ(error_of([&] { third_.receive("late", forgotten); }), "expired");
  EXPECT_TRUE(third_.holds("t", 7));
  third_.drop("t");
  expect_all_back();
}

// ---- taken back -------------------------------------------------------------------------------

// The lease that it was sent on by has no connection any more; its process is known all the same.
TEST_F(SentOnMessagesTest, AMessageIsTakenBackOverANewerConnection) {
  sender_.allocate("b", kMiB, 7);
  reader_.receive("r", sender_.share("b"));
  const std::string on = reader_.share("r");
  const std::int64_t withdrawn = sender_.stat("withdrawn");
  sender_.cut_connections();
  std::vector<std::string> held = {"r"};
  EXPECT_TRUE(eventually([&] {  // a receive connects anew once the reader has noticed
    held.push_back("again-" + std::to_string(held.size()));
    reader_.receive(held.back(), sender_.share("b"));
    return error_of([&] { reader_.withdraw(on); }) != "no_channel";
  }));
  EXPECT_TRUE(sender_.becomes("withdrawn", withdrawn + 1));
  EXPECT_EQ(error_of([&] { third_.receive("late", on); }), "withdrawn");
  for (const std::string& name : held) reader_.drop(name);
  sender_.free("b");
  expect_all_back();
  reader_.process().kill();  // the lease without a connection goes with it
}

// Nothing is left of the connection that it was sent on by.
TEST_F(SentOnMessagesTest, AMessageOfAForgottenConnectionIsTakenBack) {
  sender_.allocate("b", kMiB, 7);
  reader_.receive("r", sender_.share("b"));
  const std::string on = reader_.share("r");
  const std::int64_t withdrawn = sender_.stat("withdrawn");
  sender_.cut_connections();
  reader_.drop("r");
  EXPECT_TRUE(sender_.becomes("held_claims", 0));
  EXPECT_TRUE(reader_.becomes("pieces_mapped", 0));
  EXPECT_EQ(error_of([&] { reader_.withdraw(on); }), "no_channel");
  reader_.receive("again", sender_.share("b"));
  reader_.withdraw(on);
  EXPECT_TRUE(sender_.becomes("withdrawn", withdrawn + 1));
  EXPECT_EQ(error_of([&] { third_.receive("late", on); }), "withdrawn");
  reader_.drop("again");
  sender_.free("b");
  expect_all_back();
  reader_.process().kill();
}

TEST_F(SentOnMessagesTest, AnOwnerThatCannotBeToldIsAnError) {
  sender_.allocate("b", kMiB, 7);
  reader_.receive("r", sender_.share("b"));
  const std::string on = reader_.share("r");
  sender_.cut_connections();
  EXPECT_EQ(error_of([&] { reader_.withdraw(on); }), "no_channel");
  third_.receive("t", on);  // it was not taken back
  EXPECT_TRUE(third_.holds("t", 7));
  third_.drop("t");
  reader_.drop("r");
  sender_.free("b");
  expect_all_back();
  reader_.process().kill();
}

// Nobody can open it any more: that is what was asked for.
TEST_F(SentOnMessagesTest, ADeadOwnersMessageIsOver) {
  Peer owner;
  owner.allocate("b", kMiB, 7);
  reader_.receive("r", owner.share("b"));
  const std::string on = reader_.share("r");
  owner.process().kill();
  EXPECT_EQ(error_of([&] { reader_.withdraw(on); }), "none");
  EXPECT_EQ(error_of([&] { third_.receive("late", on); }), "producer_exited");
  reader_.drop("r");
}

}  // namespace
}  // namespace limbo::testing
