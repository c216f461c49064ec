// Forwarders whose work will not come: they lose their GPU context, or die. Nobody waits for them,
// and what they have not written is known as such.
#include <signal.h>

#include "tests/processes/sharing_support.h"

namespace limbo::testing {
namespace {

using std::chrono::milliseconds;

// sender_ owns, reader_ forwards, third_ opens what was sent on.
class LostForwarderTest : public SharingTest {
 protected:
  void TearDown() override {
    third_.expect_balance();
    if (lost_) reader_.process().kill();  // without a context it cannot give its memory back
    SharingTest::TearDown();
  }
  void lose(Peer& peer) {
    lost_ |= &peer == &reader_;
    ASSERT_TRUE(peer.lose_context());
  }
  // The reader receives, and sends on behind work that does not end.
  std::string send_on_behind_a_hold(Peer& owner, const std::string& name) {
    owner.allocate("b", kMiB, 1);
    reader_.use_stream("default");
    reader_.receive(name, owner.share("b"));
    reader_.use_stream("held_" + name);
    reader_.call("hold_stream");
    const std::string on = reader_.share(name);
    reader_.use_stream("default");
    return on;
  }

  Peer third_;
  bool lost_ = false;
};

// It holds everything still, so nothing that it releases meets the loss.
TEST_F(LostForwarderTest, ALostContextIsNoticedWhileNothingIsReleased) {
  LIMBO_NEEDS_SIMULATED_DEVICE();  // on hardware the kernel ends before the error is reported
  Peer other;
  third_.receive("t", send_on_behind_a_hold(sender_, "r"));
  third_.receive("u", send_on_behind_a_hold(other, "s"));
  lose(reader_);
  third_.synchronize();  // comes back
  for (const char* name : {"t", "u"}) third_.drop(name);
  reader_.process().kill();
  for (Peer* owner : {&sender_, &other}) owner->free("b");
  EXPECT_TRUE(other.becomes("limbo", 0));
  expect_all_back();
}

// The first call that meets the loss is the send itself: every owner is told.
TEST_F(LostForwarderTest, ASendThatMeetsALostContextTellsEveryOwner) {
  Peer other;
  sender_.allocate("b", kMiB, 1);
  other.allocate("b", kMiB, 1);
  reader_.receive("r", sender_.share("b"));
  reader_.receive("s", other.share("b"));
  reader_.synchronize();
  lose(reader_);
  EXPECT_EQ(error_of([&] { (void)reader_.share("r"); }), "device_error");
  for (Peer* owner : {&sender_, &other}) {
    EXPECT_TRUE(eventually([&] {
      const auto holders = owner->holders();
      return holders.size() == 1 && holders[0].find("context is lost") != std::string::npos;
    }));
  }
  reader_.process().kill();
  for (Peer* owner : {&sender_, &other}) owner->free("b");
  EXPECT_TRUE(other.becomes("limbo", 0));
  expect_all_back();
}

// ---- what the dead have not written ------------------------------------------------------------

// Two blocks, sent on by a process that has written the one and dies under its write of the other.
class DeadForwarderTest : public LostForwarderTest {
 protected:
  DeadForwarderTest() : forwarder_(std::make_unique<Peer>()) {}

  void send_both() {
    for (const char* name : {"written", "unwritten"}) {
      sender_.allocate(name, kMiB, 1);
      forwarder_->receive(name, sender_.share(name));
    }
    forwarder_->fill("written", 5);
    forwarder_->synchronize();
    // Their owner keeps both, so they stay open for everybody.
    written_ = forwarder_->share("written");
    forwarder_->synchronize();
    forwarder_->use_stream("held");
    forwarder_->write_for("unwritten", 6, milliseconds(60'000));
    unwritten_ = forwarder_->share("unwritten");
  }
  static void open_both(Peer& peer, const std::string& prefix, const DeadForwarderTest& sent) {
    peer.receive(prefix + "written", sent.written_);
    peer.receive(prefix + "unwritten", sent.unwritten_);
  }
  static void expect_marks(Peer& peer, const std::string& prefix) {
    peer.synchronize();  // comes back
    EXPECT_TRUE(peer.orphaned(prefix + "unwritten"));
    EXPECT_FALSE(peer.orphaned(prefix + "written"));
    EXPECT_TRUE(peer.holds(prefix + "written", 5));
    for (const char* name : {"written", "unwritten"}) peer.drop(prefix + name);
  }
  void free_both() {
    for (const char* name : {"written", "unwritten"}) sender_.free(name);
    expect_all_back();
  }

  std::unique_ptr<Peer> forwarder_;
  std::string written_;
  std::string unwritten_;
};

TEST_F(DeadForwarderTest, WhatItHasNotWrittenIsMarkedAtTheThird) {
  send_both();
  open_both(third_, "", *this);
  for (const char* name : {"written", "unwritten"}) EXPECT_FALSE(third_.orphaned(name));
  forwarder_->process().kill();
  expect_marks(third_, "");
  free_both();
}

// By whoever opens it then, whom its owner tells of the dead.
TEST_F(DeadForwarderTest, WhatIsOpenedAfterItsDeathIsMarkedToo) {
  send_both();
  open_both(third_, "early_", *this);
  forwarder_->process().kill();
  EXPECT_TRUE(sender_.becomes("leases_swept", 1));
  EXPECT_TRUE(third_.becomes("forwarders_met", 0));  // forgotten; its blocks live
  open_both(third_, "late_", *this);
  for (const char* prefix : {"early_", "late_"}) expect_marks(third_, prefix);
  Peer fourth;
  open_both(fourth, "", *this);
  expect_marks(fourth, "");
  free_both();
}

TEST_F(DeadForwarderTest, WhatComesBackToItsOwnerIsMarkedToo) {
  send_both();
  sender_.use_stream("reading");
  open_both(sender_, "early_", *this);
  forwarder_->process().kill();
  EXPECT_TRUE(sender_.becomes("leases_swept", 1));
  open_both(sender_, "late_", *this);
  for (const char* prefix : {"early_", "late_"}) expect_marks(sender_, prefix);
  sender_.use_stream("default");
  for (const char* name : {"written", "unwritten"}) sender_.free(name);
  EXPECT_TRUE(sender_.becomes("limbo", 0));
  sender_.empty_cache();  // waits for the events of other streams
  expect_all_back();
}

// Its GPU work goes on in the name of its child: it sets back what was completed, after the sweep too.
TEST_F(DeadForwarderTest, WhatWasEndedByForceStaysCompleted) {
  LIMBO_NEEDS_SIMULATED_DEVICE();  // kernels that outlive their process for a known time
  sender_.allocate("b", kMiB, 1);
  forwarder_->receive("r", sender_.share("b"));
  forwarder_->write_for("r", 5, milliseconds(300));
  sender_.use_stream("early");
  sender_.receive("first", forwarder_->share("r"));
  sender_.drop("first");
  sender_.use_stream("default");
  forwarder_->write_for("r", 6, milliseconds(60'000));
  const std::string unwritten = forwarder_->share("r");
  const pid_t child = forwarder_->fork_idle_child();
  forwarder_->process().kill();
  EXPECT_TRUE(sender_.becomes("leases_quarantined", 1));
  EXPECT_EQ(sender_.reap(true), "1 1");
  EXPECT_TRUE(eventually([&] { return sender_.holds("b", 6); }));  // the first number has landed
  sender_.use_stream("reading");
  sender_.receive("mine", unwritten);
  sender_.synchronize();  // comes back
  EXPECT_TRUE(sender_.orphaned("mine"));
  sender_.use_stream("default");
  sender_.drop("mine");
  ::kill(child, SIGKILL);
  sender_.free("b");
  EXPECT_TRUE(sender_.becomes("limbo", 0));
  sender_.empty_cache();  // waits for the events of other streams
  EXPECT_EQ(sender_.stat("leases_swept"), 1);
}

// Memory that came before, by a message of its owner's, stands for both: here at a third process, and at
// the owner itself.
TEST_F(DeadForwarderTest, WhatASecondMessagePromisedIsMarkedAtTheFirst) {
  send_both();
  sender_.use_stream("reading");
  for (Peer* peer : {&third_, &sender_}) {
    for (const char* name : {"written", "unwritten"}) {
      const std::string first = std::string("first_") + name;
      peer->receive(first, sender_.share(name));
      peer->receive("second", name == std::string("written") ? written_ : unwritten_);
      peer->came_also_by(first, "second");
      peer->drop("second");
      EXPECT_FALSE(peer->orphaned(first));
    }
  }
  forwarder_->process().kill();
  for (Peer* peer : {&third_, &sender_}) expect_marks(*peer, "first_");
  sender_.use_stream("default");
  for (const char* name : {"written", "unwritten"}) sender_.free(name);
  EXPECT_TRUE(sender_.becomes("limbo", 0));
  sender_.empty_cache();  // waits for the events of other streams
  expect_all_back();
}

// One that lives on without its context has ended its own numbers.
TEST_F(LostForwarderTest, WhatALostContextLeavesUnwrittenIsMarked) {
  LIMBO_NEEDS_SIMULATED_DEVICE();  // on hardware the kernel ends before the error is reported
  sender_.allocate("early", kMiB, 1);
  reader_.receive("early", sender_.share("early"));
  third_.receive("written", reader_.share("early"));
  third_.synchronize();
  third_.receive("t", send_on_behind_a_hold(sender_, "r"));
  lose(reader_);
  third_.synchronize();
  EXPECT_TRUE(third_.orphaned("t"));
  EXPECT_FALSE(third_.orphaned("written"));
  for (const char* name : {"t", "written"}) third_.drop(name);
  reader_.process().kill();
  EXPECT_TRUE(sender_.becomes("held_claims", 0));
}

}  // namespace
}  // namespace limbo::testing
