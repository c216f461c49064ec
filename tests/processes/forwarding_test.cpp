// Sending on what was received: A lends to B, B sends on to C, and so on.
#include "tests/processes/sharing_support.h"

namespace limbo::testing {
namespace {

using std::chrono::milliseconds;

// sender_ owns, reader_ forwards, third_ opens what was sent on.
class ForwardingTest : public SharingTest {
 protected:
  void TearDown() override {
    third_.expect_balance();
    SharingTest::TearDown();
  }

  Peer third_;
};

TEST_F(ForwardingTest, ABlockIsSentOnAndComesBackFromBoth) {
  sender_.allocate("b", kMiB, 7);
  reader_.receive("r", sender_.share("b"));
  const std::string on = reader_.share("r");
  EXPECT_EQ(sender_.stat("in_flight"), 1);
  EXPECT_EQ(sender_.stat("forwards"), 1);
  sender_.free("b");
  third_.receive("t", on);
  EXPECT_TRUE(third_.holds("t", 7));
  EXPECT_TRUE(sender_.becomes("held_claims", 2));
  reader_.drop("r");
  EXPECT_TRUE(sender_.becomes("held_claims", 1));
  EXPECT_GT(sender_.stat("limbo"), 0);
  EXPECT_TRUE(third_.holds("t", 7));
  third_.drop("t");
  expect_all_back();
  EXPECT_EQ(error_of([&] { third_.receive("late", on); }), "gone");
}

// Nothing of the owner's first message is needed any more when the second is opened.
TEST_F(ForwardingTest, TheForwarderMayLetGoBeforeTheMessageIsOpened) {
  sender_.allocate("b", kMiB, 7);
  reader_.receive("r", sender_.share("b"));
  sender_.free("b");
  const std::string on = reader_.share("r");
  reader_.drop("r");
  EXPECT_TRUE(sender_.becomes("held_claims", 0));
  EXPECT_GT(sender_.stat("limbo"), 0);
  third_.receive("t", on);
  EXPECT_TRUE(third_.holds("t", 7));
  third_.drop("t");
  expect_all_back();
}

// Both orders of work: what the owner had queued, and what the forwarder has written.
TEST_F(ForwardingTest, TheThirdWaitsForTheOwnersWorkAndForTheForwarders) {
  sender_.allocate("b", kMiB, 1);
  sender_.write_for("b", 2, milliseconds(300));
  reader_.receive("r", sender_.share("b"));
  third_.receive("owners", reader_.share("r"));
  EXPECT_TRUE(third_.holds("owners", 2));
  reader_.write_for("r", 3, milliseconds(300));
  third_.receive("forwarders", reader_.share("r"));
  EXPECT_TRUE(third_.holds("forwarders", 3));
  for (const char* name : {"owners", "forwarders"}) third_.drop(name);
  reader_.drop("r");
  sender_.free("b");
  expect_all_back();
}

// Written on the stream that received it, sent on by a thread whose current stream is another.
TEST_F(ForwardingTest, TheReceivingStreamCountsAndSoDoesTheCurrentOne) {
  sender_.allocate("b", kMiB, 1);
  const std::string message = sender_.share("b");
  reader_.use_stream("receiving");
  reader_.receive("r", message);
  reader_.write_for("r", 5, milliseconds(300));
  reader_.use_stream("sending");
  third_.receive("one", reader_.share("r"));
  EXPECT_TRUE(third_.holds("one", 5));
  reader_.write_for("r", 6, milliseconds(300));
  reader_.record_stream("r", "sending");
  third_.receive("two", reader_.share("r"));
  EXPECT_TRUE(third_.holds("two", 6));
  for (const char* name : {"one", "two"}) third_.drop(name);
  reader_.drop("r");
  sender_.free("b");
  expect_all_back();
}

// Whichever of them was taken back.
TEST_F(ForwardingTest, WhatCameByTwoMessagesIsSentOnByTheOneThatIsNotOver) {
  sender_.allocate("b", kMiB, 7);
  for (const bool first : {true, false}) {
    const std::string one = sender_.share("b");
    const std::string other = sender_.share("b");
    reader_.receive("one", one);
    reader_.receive("other", other);
    sender_.withdraw(first ? one : other);
    third_.receive("t", reader_.share("one"));
    EXPECT_TRUE(third_.holds("t", 7));
    third_.drop("t");
    reader_.drop("one");
    EXPECT_TRUE(sender_.becomes("held_claims", 1));
    reader_.drop("other");
  }
  sender_.free("b");
  expect_all_back();
}

TEST_F(ForwardingTest, DownAChainOfFour) {
  Peer fourth;
  sender_.allocate("b", kMiB, 1);
  reader_.receive("r", sender_.share("b"));
  reader_.write_for("r", 2, milliseconds(100));
  third_.receive("t", reader_.share("r"));
  third_.write_for("t", 3, milliseconds(100));
  const std::string last = third_.share("t");
  reader_.drop("r");
  third_.drop("t");
  sender_.free("b");
  fourth.receive("f", last);
  EXPECT_TRUE(fourth.holds("f", 3));
  EXPECT_GT(sender_.stat("limbo"), 0);
  fourth.drop("f");
  expect_all_back();
}

TEST_F(ForwardingTest, ToSeveralConsumers) {
  Peer fourth;
  sender_.allocate("b", kMiB, 4);
  reader_.receive("r", sender_.share("b"));
  const std::string on = reader_.share("r", -1, 2);
  reader_.drop("r");
  sender_.free("b");
  EXPECT_TRUE(sender_.becomes("in_flight", 2));
  third_.receive("one", on);
  third_.receive("two", on);
  EXPECT_TRUE(sender_.becomes("in_flight", 1));
  third_.drop("one");
  third_.drop("two");
  fourth.receive("f", on);
  EXPECT_TRUE(fourth.holds("f", 4));
  fourth.drop("f");
  expect_all_back();
}

TEST_F(ForwardingTest, BackToTheOwner) {
  sender_.allocate("b", kMiB, 1);
  reader_.receive("r", sender_.share("b"));
  reader_.write_for("r", 5, milliseconds(300));
  const std::string back = reader_.share("r");
  sender_.use_stream("reading");
  sender_.receive("mine", back);
  EXPECT_TRUE(sender_.holds("mine", 5));  // it has waited for the forwarder's number
  sender_.use_stream("default");
  sender_.receive("again", back);
  EXPECT_TRUE(sender_.holds("again", 5));
  sender_.free("b");
  // And on from there, though its owner has freed it.
  third_.receive("t", sender_.share("again"));
  EXPECT_TRUE(third_.holds("t", 5));
  for (const char* name : {"mine", "again"}) sender_.drop(name);
  reader_.drop("r");
  EXPECT_GT(sender_.stat("limbo"), 0);
  third_.drop("t");
  EXPECT_TRUE(sender_.becomes("limbo", 0));
  sender_.empty_cache();  // waits for the events of other streams
  expect_all_back();
}

TEST_F(ForwardingTest, BackToTheForwarderItself) {
  sender_.allocate("b", kMiB, 1);
  reader_.receive("r", sender_.share("b"));
  reader_.write_for("r", 5, milliseconds(200));
  const std::string on = reader_.share("r");
  reader_.use_stream("other");
  reader_.receive("again", on);
  EXPECT_TRUE(reader_.holds("again", 5));
  reader_.drop("r");
  reader_.drop("again");
  sender_.free("b");
  expect_all_back();
}

// A process that opened its own message sends it on after it has freed the block.
TEST_F(ForwardingTest, WithinOneProcessAfterTheFree) {
  sender_.allocate("b", kMiB, 7);
  sender_.receive("mine", sender_.share("b"));
  sender_.free("b");
  const std::string on = sender_.share("mine");
  sender_.drop("mine");
  EXPECT_GT(sender_.stat("limbo"), 0);
  third_.receive("t", on);
  EXPECT_TRUE(third_.holds("t", 7));
  third_.drop("t");
  expect_all_back();
}

TEST_F(ForwardingTest, AMessageThatWasSentOnExpiresAndCanBeTakenBack) {
  sender_.allocate("b", kMiB, 7);
  const std::int64_t withdrawn = sender_.stat("withdrawn");
  reader_.receive("r", sender_.share("b"));
  sender_.free("b");
  const std::string unopened = reader_.share("r", 100);
  EXPECT_TRUE(sender_.becomes("expired", 1));
  EXPECT_EQ(error_of([&] { third_.receive("late", unopened); }), "expired");
  const std::string taken_back = reader_.share("r", -1, 2);
  reader_.withdraw(taken_back);
  EXPECT_TRUE(sender_.becomes("withdrawn", withdrawn + 1));
  EXPECT_EQ(error_of([&] { third_.receive("late", taken_back); }), "withdrawn");
  const std::string another = reader_.share("r");
  EXPECT_EQ(error_of([&] { third_.withdraw(another); }), "bad_argument");
  reader_.withdraw(another);
  reader_.drop("r");
  EXPECT_TRUE(sender_.becomes("held_claims", 0));
}

TEST_F(ForwardingTest, WhatWasTakenBackIsNotSentOn) {
  sender_.allocate("b", kMiB, 7);
  const std::string message = sender_.share("b");
  reader_.receive("r", message);
  sender_.withdraw(message);
  EXPECT_EQ(error_of([&] { (void)reader_.share("r"); }), "withdrawn");
  EXPECT_TRUE(reader_.holds("r", 7));
  reader_.drop("r");
  sender_.free("b");
  expect_all_back();
}

TEST_F(ForwardingTest, WhatWasReleasedIsNotSentOn) {
  reader_.allocate("own", kMiB, 1);  // a process that lends, too
  sender_.allocate("b", kMiB, 7);
  reader_.receive("r", sender_.share("b"));
  reader_.release("r");
  EXPECT_EQ(error_of([&] { (void)reader_.share("r"); }), "not_lendable");
  reader_.free("own");
  sender_.free("b");
  expect_all_back();
}

// ---- deaths -----------------------------------------------------------------------------------

// The forwarder's exit waits for its own work on what it has sent on, and for nothing else.
TEST_F(ForwardingTest, TheForwarderEndsAndTheThirdReadsWhatItWrote) {
  const std::int64_t before = sender_.stat("allocated");
  sender_.allocate("b", kMiB, 1);
  Peer forwarder;
  forwarder.receive("r", sender_.share("b"));
  sender_.free("b");
  forwarder.write_for("r", 9, milliseconds(300));
  const std::string on = forwarder.share("r");
  forwarder.leave(0);
  EXPECT_TRUE(forwarder.process().wait().success());
  EXPECT_TRUE(sender_.becomes("leases_swept", 1));
  third_.receive("t", on);
  EXPECT_TRUE(third_.holds("t", 9));
  EXPECT_GT(sender_.stat("limbo"), 0);
  third_.drop("t");
  expect_all_back(before);
}

// Killed under its own write: the third is not kept waiting for a number that nobody will write.
TEST_F(ForwardingTest, AKilledForwarderKeepsNobodyWaiting) {
  for (const bool opened_before : {true, false}) {
    sender_.allocate("b", kMiB, 1);
    Peer forwarder;
    forwarder.receive("r", sender_.share("b"));
    sender_.free("b");
    forwarder.write_for("r", 9, milliseconds(1000));
    const std::string on = forwarder.share("r");
    if (opened_before) third_.receive("t", on);
    forwarder.process().kill();
    if (!opened_before) {
      EXPECT_TRUE(sender_.becomes("leases_swept", 2));
      third_.receive("t", on);
    }
    third_.synchronize();
    third_.drop("t");
    expect_all_back();
  }
}

// The owner too: the third completes the wait by itself.
TEST_F(ForwardingTest, AKilledForwarderAndAKilledOwnerKeepNobodyWaiting) {
  Peer owner;
  Peer forwarder;
  owner.allocate("b", kMiB, 1);
  forwarder.receive("r", owner.share("b"));
  forwarder.write_for("r", 9, milliseconds(1000));
  third_.receive("t", forwarder.share("r"));
  owner.process().kill();
  forwarder.process().kill();
  third_.synchronize();
  EXPECT_TRUE(eventually([&] { return third_.orphaned("t"); }));
  third_.drop("t");
}

TEST_F(ForwardingTest, TheOwnerWaitsForNoDeadForwarder) {
  sender_.allocate("b", kMiB, 1);
  Peer forwarder;
  forwarder.receive("r", sender_.share("b"));
  forwarder.write_for("r", 9, milliseconds(1000));
  const std::string back = forwarder.share("r");
  sender_.use_stream("reading");
  sender_.receive("mine", back);
  forwarder.process().kill();
  sender_.synchronize();
  sender_.drop("mine");
  sender_.free("b");
  EXPECT_TRUE(sender_.becomes("limbo", 0));
  sender_.empty_cache();  // waits for the events of other streams
  expect_all_back();
}

TEST_F(ForwardingTest, ADeadOwnersMemoryIsNotSentOn) {
  Peer owner;
  owner.allocate("b", kMiB, 7);
  owner.synchronize();  // what is queued goes with it
  reader_.receive("r", owner.share("b"));
  owner.process().kill();
  try {
    (void)reader_.share("r");
    ADD_FAILURE() << "was sent on";
  } catch (const PeerError& failure) {
    EXPECT_EQ(failure.code(), "producer_exited");
    EXPECT_NE(std::string(failure.what()).find("clone()"), std::string::npos) << failure.what();
  }
  EXPECT_TRUE(reader_.holds("r", 7));
  reader_.drop("r");
}

// An owner that does not answer costs a second and an error; what it makes later is taken back.
TEST_F(ForwardingTest, ALateAnswerIsTakenBack) {
  sender_.allocate("b", kMiB, 7);
  const std::int64_t withdrawn = sender_.stat("withdrawn");
  reader_.receive("r", sender_.share("b"));
  EXPECT_TRUE(sender_.becomes("in_flight", 0));
  sender_.process().stop();
  const auto began = std::chrono::steady_clock::now();
  EXPECT_EQ(error_of([&] { (void)reader_.share("r"); }), "no_channel");
  EXPECT_GE(std::chrono::steady_clock::now() - began, milliseconds(900));
  sender_.process().resume();
  EXPECT_TRUE(sender_.becomes("forwards", 1));
  EXPECT_TRUE(sender_.becomes("withdrawn", withdrawn + 1));
  EXPECT_EQ(sender_.stat("in_flight"), 0);
  EXPECT_TRUE(reader_.holds("r", 7));
  third_.receive("t", reader_.share("r"));  // and the next one is answered
  third_.drop("t");
  reader_.drop("r");
  sender_.free("b");
  expect_all_back();
}

TEST_F(ForwardingTest, AnAskerThatIsGoneIsAnsweredInVain) {
  sender_.allocate("b", kMiB, 7);
  const std::int64_t withdrawn = sender_.stat("withdrawn");
  Peer forwarder;
  forwarder.receive("r", sender_.share("b"));
  sender_.set_fail_points("forward.before_answer=delay:300");
  forwarder.send("share r -1 1");
  EXPECT_TRUE(eventually([&] { return sender_.passed("forward.before_answer") == 1; }));
  forwarder.process().kill();
  EXPECT_TRUE(sender_.becomes("withdrawn", withdrawn + 1));
  EXPECT_EQ(sender_.stat("in_flight"), 0);
  sender_.free("b");
  expect_all_back();
}

TEST_F(ForwardingTest, ASendThatFailsLeavesNothing) {
  sender_.allocate("b", kMiB, 7);
  const std::int64_t withdrawn = sender_.stat("withdrawn");
  reader_.receive("r", sender_.share("b"));
  for (const char* point : {"sendon.after_enqueue", "sendon.before_ask", "sendon.after_answer"}) {
    reader_.set_fail_points(std::string(point) + "=error");
    EXPECT_EQ(error_of([&] { (void)reader_.share("r"); }), "internal") << point;
  }
  EXPECT_TRUE(sender_.becomes("withdrawn", withdrawn + 1));
  sender_.set_fail_points("forward.after_pin=error");
  EXPECT_EQ(error_of([&] { (void)reader_.share("r"); }), "internal");
  sender_.check_invariants();
  reader_.set_fail_points("");
  const std::string on = reader_.share("r");
  for (const char* point : {"forwarder.before_ask", "forwarder.after_map"}) {
    third_.set_fail_points(std::string(point) + "=error");
    EXPECT_EQ(error_of([&] { third_.receive("t", on); }), "internal") << point;
  }
  third_.set_fail_points("");
  EXPECT_TRUE(sender_.becomes("held_claims", 1));
  reader_.drop("r");
  sender_.free("b");
  expect_all_back();
}

}  // namespace
}  // namespace limbo::testing
