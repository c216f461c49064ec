// Memory that several messages have brought, and that one block stands for: sent on, it is what all of
// them were.
#include <memory>
#include <string>

#include "tests/processes/sharing_support.h"

namespace limbo::testing {
namespace {

using std::chrono::milliseconds;

// sender_ owns; dying_ sends on what it does not finish; reader_ receives from both, merges, and sends
// on; third_ opens that.
class MergedMessagesTest : public SharingTest {
 protected:
  MergedMessagesTest() : dying_(std::make_unique<Peer>()) {}

  void SetUp() override {
    SharingTest::SetUp();
    sender_.allocate("b", kMiB, 1);
  }
  void TearDown() override {
    third_.expect_balance();
    SharingTest::TearDown();
  }

  // By two messages, of which the second's block is given back.
  static void receive_both(Peer& by, const std::string& first, const std::string& second,
                           const std::string& second_stream = "default") {
    by.receive("first", first);
    by.use_stream(second_stream);
    by.receive("second", second);
    by.came_also_by("first", "second");
    by.drop("second");
  }
  // Of the one that dies, behind a write that does not end.
  std::string unfinished() {
    dying_->receive("r", sender_.share("b"));
    dying_->use_stream("writing");
    dying_->write_for("r", 6, milliseconds(60'000));
    return dying_->share("r");
  }
  void expect_marked(Peer& peer, const std::string& name) {
    peer.synchronize();  // comes back
    EXPECT_TRUE(peer.orphaned(name));
    peer.drop(name);
  }
  void free_all() {
    sender_.free("b");
    EXPECT_TRUE(sender_.becomes("limbo", 0));
    sender_.empty_cache();  // waits for the events of other streams
    expect_all_back();
  }

  Peer third_;
  std::unique_ptr<Peer> dying_;
};

// Each came on a stream of its own, and a third one sends.
TEST_F(MergedMessagesTest, TheThirdWaitsForTheWorkOfBoth) {
  const std::string first = sender_.share("b");
  sender_.write_for("b", 2, milliseconds(300));
  const std::string second = sender_.share("b");
  reader_.use_stream("one");
  receive_both(reader_, first, second, "two");
  reader_.use_stream("sending");
  third_.receive("t", reader_.share("first"));
  EXPECT_TRUE(third_.holds("t", 2));
  // What it writes itself on the stream on which the second came counts as on the first's.
  reader_.use_stream("two");
  reader_.write_for("first", 3, milliseconds(300));
  reader_.record_stream("first", "two");
  reader_.use_stream("sending");
  third_.receive("u", reader_.share("first"));
  EXPECT_TRUE(third_.holds("u", 3));
  for (const char* name : {"t", "u"}) third_.drop(name);
  reader_.drop("first");
  free_all();
}

// Whichever of them is known to be lost, or will be.
TEST_F(MergedMessagesTest, TheThirdIsMarkedByBoth) {
  const std::string unfinished_message = unfinished();
  receive_both(reader_, sender_.share("b"), unfinished_message);
  third_.receive("before", reader_.share("first"));
  EXPECT_FALSE(third_.orphaned("before"));
  dying_->process().kill();
  expect_marked(third_, "before");
  reader_.synchronize();
  EXPECT_TRUE(reader_.orphaned("first"));
  third_.receive("after", reader_.share("first"));
  expect_marked(third_, "after");
  reader_.drop("first");
  free_all();
}

// The message that has the mark cannot be opened any more when the memory is sent on.
TEST_F(MergedMessagesTest, OfAMessageThatIsOverTheMarkIsSentOnToo) {
  const std::string unfinished_message = unfinished();
  receive_both(reader_, sender_.share("b"), unfinished_message);
  const std::int64_t withdrawn = sender_.stat("withdrawn");
  dying_->withdraw(unfinished_message);
  EXPECT_TRUE(sender_.becomes("withdrawn", withdrawn + 1));
  third_.receive("t", reader_.share("first"));
  Peer fourth;
  fourth.receive("f", third_.share("t"));
  for (Peer* peer : {&third_, &fourth}) {
    EXPECT_FALSE(peer->orphaned(peer == &third_ ? "t" : "f"));
  }
  dying_->process().kill();
  expect_marked(fourth, "f");
  expect_marked(third_, "t");
  reader_.drop("first");
  free_all();
}

TEST_F(MergedMessagesTest, WhatHasComeLeavesNoMark) {
  dying_->receive("r", sender_.share("b"));
  dying_->fill("r", 5);
  const std::string written = dying_->share("r");
  dying_->synchronize();
  receive_both(reader_, sender_.share("b"), written);
  third_.receive("before", reader_.share("first"));
  dying_->process().kill();
  EXPECT_TRUE(sender_.becomes("leases_swept", 1));
  third_.receive("after", reader_.share("first"));
  third_.synchronize();
  for (const char* name : {"before", "after"}) {
    EXPECT_FALSE(third_.orphaned(name));
    EXPECT_TRUE(third_.holds(name, 5));
    third_.drop(name);
  }
  reader_.drop("first");
  free_all();
}

// A block of the sender's own, which came back by what it had lent.
TEST_F(MergedMessagesTest, WhatCameBackToItsOwnerIsSentOnBehindBoth) {
  reader_.receive("r", sender_.share("b"));
  reader_.write_for("r", 2, milliseconds(300));
  const std::string back = reader_.share("r");
  sender_.use_stream("one");
  receive_both(sender_, sender_.share("b"), back, "two");
  sender_.use_stream("sending");
  third_.receive("t", sender_.share("first"));
  EXPECT_TRUE(third_.holds("t", 2));
  sender_.use_stream("default");
  const std::string unfinished_message = unfinished();
  sender_.use_stream("three");
  sender_.receive("again", unfinished_message);
  sender_.came_also_by("first", "again");
  sender_.drop("again");
  dying_->withdraw(unfinished_message);
  sender_.use_stream("sending");
  third_.receive("before", sender_.share("first"));
  EXPECT_FALSE(third_.orphaned("before"));
  dying_->process().kill();
  expect_marked(third_, "before");
  sender_.synchronize();
  EXPECT_TRUE(sender_.orphaned("first"));
  third_.receive("after", sender_.share("first"));
  expect_marked(third_, "after");
  third_.drop("t");
  sender_.drop("first");
  sender_.use_stream("default");
  reader_.drop("r");
  free_all();
}

}  // namespace
}  // namespace limbo::testing
