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

// ---- taken back -------------------------------------------------------------------------------

// The lease that it was sent on by has no connection any more; its process is known all the same.
TEST_F(SentOnMessagesTest, AMessageIsTakenBackOverANewerConnection) {
  sender_.allocate("b", kMiB, 7);
  reader_.receive("r", sender_.share("b"));
  const std::string on = reader_.share("r");
  const std::int64_t withdrawn = sender_.stat("withdrawn");
  sender_.cut_connections();
  reader_.receive("again", sender_.share("b"));  // connects anew
  reader_.withdraw(on);
  EXPECT_TRUE(sender_.becomes("withdrawn", withdrawn + 1));
  EXPECT_EQ(error_of([&] { third_.receive("late", on); }), "withdrawn");
  for (const char* name : {"r", "again"}) reader_.drop(name);
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
