// Marks down a chain: A lends to B, B writes and sends on, C sends on behind it, and so on. Whoever
// opens the last message learns that B's write has not come, however long the chain is, whoever has
// seen B's death first, and whether it was known when the message was sent.
#include <map>
#include <memory>
#include <string>

#include "tests/processes/sharing_support.h"

namespace limbo::testing {
namespace {

using std::chrono::milliseconds;

// sender_ owns; dying_ has written the one block and dies under its write of the other; the rest pass
// both on, one to the next.
class ChainTest : public SharingTest {
 protected:
  ChainTest() : dying_(std::make_unique<Peer>()) {}

  void TearDown() override {
    third_.expect_balance();
    SharingTest::TearDown();
  }

  // `to` opens what the owner lends.
  void lend(Peer& to) {
    for (auto& [name, message] : messages_) {
      sender_.allocate(name, kMiB, 1);
      message = sender_.share(name);
    }
    open(to);
  }
  void open(Peer& by, const std::string& prefix = "") {
    for (const auto& [name, message] : messages_) by.receive(prefix + name, message);
  }
  void send(Peer& by, const std::string& prefix = "") {
    for (auto& [name, message] : messages_) message = by.share(prefix + name);
  }
  void pass_on(Peer& by, const std::string& prefix = "") {
    open(by, prefix);
    send(by, prefix);
  }
  // The one who dies has what is passed on; it sends it on, and writes of the one for so long.
  void write_and_send(milliseconds duration = milliseconds(60'000)) {
    dying_->fill("written", 5);
    dying_->synchronize();
    messages_["written"] = dying_->share("written");
    dying_->synchronize();
    dying_->use_stream("writing");
    dying_->write_for("unwritten", 6, duration);
    messages_["unwritten"] = dying_->share("unwritten");
  }
  void lend_write_and_send() {
    lend(*dying_);
    write_and_send();
  }

  // Comes back, and knows what it has.
  static void expect_marks(Peer& peer, const std::string& prefix = "", bool orphaned = true) {
    peer.synchronize();
    EXPECT_EQ(peer.orphaned(prefix + "unwritten"), orphaned);
    EXPECT_FALSE(peer.orphaned(prefix + "written"));
    EXPECT_TRUE(peer.holds(prefix + "written", 5));
  }
  static void drop(Peer& peer, const std::string& prefix = "") {
    for (const char* name : {"written", "unwritten"}) peer.drop(prefix + name);
  }
  void free_both() {
    for (const char* name : {"written", "unwritten"}) sender_.free(name);
    EXPECT_TRUE(sender_.becomes("limbo", 0));
    sender_.empty_cache();  // waits for the events of other streams
    expect_all_back();
  }

  Peer third_;
  std::unique_ptr<Peer> dying_;
  std::map<std::string, std::string> messages_{{"written", ""}, {"unwritten", ""}};
};

TEST_F(ChainTest, WhoeverWaitsBehindTheNextLearnsIt) {
  lend_write_and_send();
  pass_on(reader_);
  open(third_);
  for (Peer* peer : {&reader_, &third_}) EXPECT_FALSE(peer->orphaned("unwritten"));
  dying_->process().kill();
  for (Peer* peer : {&third_, &reader_}) {
    expect_marks(*peer);
    drop(*peer);
  }
  free_both();
}

TEST_F(ChainTest, TheEndOfALongChainLearnsIt) {
  Peer fourth;
  Peer fifth;
  lend_write_and_send();
  for (Peer* peer : {&reader_, &third_, &fourth}) pass_on(*peer);
  open(fifth);
  dying_->process().kill();
  for (Peer* peer : {&fifth, &fourth, &third_, &reader_}) {
    expect_marks(*peer);
    drop(*peer);
  }
  free_both();
}

// Nobody in the middle is needed: they have released, or have ended.
TEST_F(ChainTest, TheMiddleMayHaveEnded) {
  Peer fourth;
  lend_write_and_send();
  {
    Peer middle;
    pass_on(middle);
    pass_on(third_);
    drop(third_);
    open(fourth);
    dying_->process().kill();
    expect_marks(middle);
    drop(middle);
    middle.process().kill();
  }
  expect_marks(fourth);
  drop(fourth);
  free_both();
}

TEST_F(ChainTest, WhatIsSentOnAfterTheDeathIsMarkedFromTheBeginning) {
  Peer fourth;
  lend_write_and_send();
  open(reader_);
  dying_->process().kill();
  EXPECT_TRUE(sender_.becomes("leases_swept", 1));
  EXPECT_TRUE(reader_.becomes("forwarders_met", 0));  // forgotten
  send(reader_);
  pass_on(third_);
  open(fourth);
  for (Peer* peer : {&fourth, &third_, &reader_}) {
    expect_marks(*peer);
    drop(*peer);
  }
  free_both();
}

TEST_F(ChainTest, WhatIsOpenedAfterTheDeathIsMarked) {
  lend_write_and_send();
  pass_on(reader_);
  dying_->process().kill();
  expect_marks(reader_);
  drop(reader_);
  EXPECT_TRUE(sender_.becomes("leases_swept", 1));
  open(third_);
  expect_marks(third_);
  drop(third_);
  free_both();
}

// Those who wait complete the waits, and know by themselves what did not come.
TEST_F(ChainTest, TheOwnerIsNotNeeded) {
  lend_write_and_send();
  pass_on(reader_);
  open(third_);
  sender_.process().stop();
  dying_->process().kill();
  expect_marks(third_);
  expect_marks(reader_);
  sender_.process().resume();
  for (Peer* peer : {&third_, &reader_}) drop(*peer);
  free_both();
}

TEST_F(ChainTest, WhatComesBackToItsOwnerIsMarked) {
  lend_write_and_send();
  pass_on(reader_);
  sender_.use_stream("reading");
  open(sender_, "early_");
  dying_->process().kill();
  EXPECT_TRUE(sender_.becomes("leases_swept", 1));
  open(sender_, "late_");
  for (const char* prefix : {"early_", "late_"}) expect_marks(sender_, prefix);
  for (const char* prefix : {"early_", "late_"}) drop(sender_, prefix);
  drop(reader_);
  sender_.use_stream("default");
  free_both();
}

// And what its owner sends on then, before the death is known and after it.
TEST_F(ChainTest, WhatItsOwnerSendsOnIsMarked) {
  Peer fourth;
  lend_write_and_send();
  pass_on(reader_);
  sender_.use_stream("reading");
  open(sender_, "back_");
  send(sender_, "back_");
  for (Peer* peer : {&third_, &fourth}) open(*peer);
  dying_->process().kill();
  EXPECT_TRUE(sender_.becomes("leases_swept", 1));
  expect_marks(sender_, "back_");
  send(sender_, "back_");
  open(third_, "late_");
  for (const char* prefix : {"", "late_"}) expect_marks(third_, prefix);
  expect_marks(fourth);
  for (const char* prefix : {"", "late_"}) drop(third_, prefix);
  for (Peer* peer : {&fourth, &reader_}) drop(*peer);
  drop(sender_, "back_");
  sender_.use_stream("default");
  free_both();
}

// Its own message comes back to the first of the chain, who sends it on once more.
TEST_F(ChainTest, WhoeverHasItBackSendsTheMarkOn) {
  lend(reader_);
  send(reader_);
  open(*dying_);
  write_and_send();
  pass_on(reader_, "back_");
  open(third_);
  dying_->process().kill();
  expect_marks(third_);
  expect_marks(reader_, "back_");
  EXPECT_FALSE(reader_.orphaned("unwritten"));
  drop(third_);
  for (const char* prefix : {"", "back_"}) drop(reader_, prefix);
  free_both();
}

// Whoever sees the death first dies behind its mark, before it lets anybody pass: the mark stands, and
// the next ones let pass.
TEST_F(ChainTest, WhoeverCompletesTheWaitsMayDieBehindItsMark) {
  Peer first;
  lend_write_and_send();
  pass_on(reader_);
  for (Peer* peer : {&third_, &first}) open(*peer);
  // Of the dying one's two streams, the second mark is of the one that writes.
  first.set_fail_points("orphan.after_mark=crash@2");
  for (Peer* peer : {&sender_, &reader_, &third_}) peer->process().stop();
  dying_->process().kill();
  EXPECT_TRUE(first.process().wait().signalled);
  for (Peer* peer : {&third_, &reader_}) {
    peer->process().resume();
    expect_marks(*peer);
  }
  sender_.process().resume();
  for (Peer* peer : {&third_, &reader_}) drop(*peer);
  free_both();
}

// The owner itself: then all is orphaned that it has lent, and nobody waits.
TEST_F(ChainTest, TheOwnerMayDieBehindItsMark) {
  lend_write_and_send();
  pass_on(reader_);
  open(third_);
  sender_.set_fail_points("orphan.after_mark=crash@2");
  for (Peer* peer : {&reader_, &third_}) peer->process().stop();
  dying_->process().kill();
  EXPECT_TRUE(sender_.process().wait().signalled);
  for (Peer* peer : {&third_, &reader_}) peer->process().resume();
  for (Peer* peer : {&third_, &reader_}) {
    peer->synchronize();
    EXPECT_TRUE(eventually([&] { return peer->orphaned("written"); }));
    EXPECT_TRUE(peer->orphaned("unwritten"));
    drop(*peer);
  }
}

// A number that has come is no mark, whatever happens to its sender afterwards.
TEST_F(ChainTest, WhatHasComeIsNotMarked) {
  lend(*dying_);
  write_and_send(milliseconds(200));
  pass_on(reader_);
  open(third_);
  for (Peer* peer : {&third_, &reader_}) expect_marks(*peer, "", false);
  dying_->process().kill();
  EXPECT_TRUE(sender_.becomes("leases_swept", 1));
  for (Peer* peer : {&third_, &reader_}) {
    expect_marks(*peer, "", false);
    EXPECT_TRUE(peer->holds("unwritten", 6));
    drop(*peer);
  }
  free_both();
}

}  // namespace
}  // namespace limbo::testing
