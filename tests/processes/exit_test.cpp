// Ends that are not sudden: exits with work under way, and what arrives although its sender has gone.
#include "tests/processes/sharing_support.h"

namespace limbo::testing {
namespace {

using std::chrono::milliseconds;

class ExitTest : public SharingTest {};

// Blocks may be dropped by static objects, behind the library's own end: exit code 0, nothing said.
TEST_F(ExitTest, WhatStaticObjectsHoldIsDroppedQuietly) {
  sender_.allocate("b", kMiB, 5);
  reader_.receive("r", sender_.share("b"));
  reader_.write_for("r", 9, milliseconds(300));
  reader_.call("keep_until_static_destruction");
  reader_.leave(0);
  EXPECT_TRUE(reader_.process().wait().success());
  EXPECT_EQ(reader_.process().output(), "");

  Peer next;
  next.receive("r", sender_.share("b"));
  sender_.write_for("b", 8, milliseconds(300));
  sender_.call("keep_until_static_destruction");
  sender_.leave(0);
  EXPECT_TRUE(sender_.process().wait().success());
  EXPECT_EQ(sender_.process().output(), "");
  EXPECT_TRUE(eventually([&] { return next.orphaned("r"); }));
  next.drop("r");
}

// Full limbo and a living reader, and a reader that ends first.
TEST_F(ExitTest, ASenderFullOfLimboExitsQuietly) {
  for (int index = 0; index < 50; ++index) {
    const std::string name = "b" + std::to_string(index);
    sender_.allocate(name, 64 << 10, 7);
    reader_.receive(name, sender_.share(name));
    sender_.free(name);
  }
  EXPECT_GT(sender_.stat("limbo"), 0);
  sender_.leave(0);
  EXPECT_TRUE(sender_.process().wait().success());
  EXPECT_EQ(sender_.process().output(), "");
  for (int index = 0; index < 50; ++index) {
    EXPECT_TRUE(reader_.holds("b" + std::to_string(index), 7));
  }
  reader_.leave(0);
  EXPECT_TRUE(reader_.process().wait().success());
  EXPECT_EQ(reader_.process().output(), "");
}

TEST_F(ExitTest, ASenderThatEndsAtOnceIsOneClearError) {
  sender_.allocate("b", kMiB, 5);
  const std::string message = sender_.share("b");
  sender_.leave_at_once(0);
  EXPECT_TRUE(sender_.process().wait().success());
  EXPECT_EQ(error_of([&] { reader_.receive("r", message); }), "producer_exited");
}

// Its finished sends are right; a wait for its unfinished one is over, and says that it is an orphan.
TEST_F(ExitTest, AKilledSendersFinishedWorkIsThereAndNobodyWaitsForTheRest) {
  Peer other;
  sender_.allocate("finished", kMiB, 5);
  sender_.allocate("unfinished", kMiB, 1);
  sender_.synchronize();
  const std::string finished = sender_.share("finished");
  const std::string as_well = sender_.share("finished");
  sender_.write_for("unfinished", 9, milliseconds(60'000));
  const std::string unfinished = sender_.share("unfinished");
  reader_.receive("f", finished);
  other.receive("f", as_well);
  EXPECT_TRUE(reader_.holds("f", 5)) << "it was sent before the long work";
  reader_.receive("u", unfinished);
  reader_.send("synchronize");
  other.send("synchronize");
  EXPECT_EQ(other.answer(), "");
  sender_.process().kill();
  EXPECT_EQ(reader_.answer(), "");
  // The other reader may be the one that has completed the wait.
  EXPECT_TRUE(eventually([&] { return reader_.orphaned("u"); }));
  for (Peer* peer : {&reader_, &other}) {
    EXPECT_TRUE(peer->holds("f", 5));
    EXPECT_TRUE(eventually([&] { return peer->orphaned("f"); }));
  }
  reader_.drop("f");
  reader_.drop("u");
  other.drop("f");
  EXPECT_TRUE(reader_.becomes("releases_pending", 0));
}

// A driver that has ended with its process says that the context is lost. That is nobody's business,
// and what the GPU has been given may run on: nothing is given back but by the end of the process.
TEST_F(ExitTest, ALossThatIsSeenOnceTheProcessEndsGivesNothingBack) {
  LIMBO_NEEDS_SIMULATED_DEVICE();
  sender_.allocate("b", kMiB, 5);
  const std::vector<std::string> names{"r0", "r1"};
  for (const std::string& name : names) {
    reader_.receive(name, sender_.share("b"));
    reader_.record_stream(name, "s");
  }
  sender_.free("b");
  reader_.destroy_stream("s");  // so its device is waited for
  reader_.set_faults("synchronize:1=hang");
  EXPECT_TRUE(sender_.becomes("held_claims", 2));
  for (const std::string& name : names) reader_.drop(name);
  ASSERT_TRUE(eventually([&] { return reader_.calls("synchronize") > 0; }));
  reader_.call("end_sharing");
  ASSERT_TRUE(reader_.lose_context());
  reader_.set_faults("");  // the call comes back
  EXPECT_FALSE(sender_.becomes("held_claims", 0, milliseconds(300)));
  reader_.process().kill();
  EXPECT_TRUE(sender_.becomes("claims_swept", 2));
  expect_all_back();
}

}  // namespace
}  // namespace limbo::testing
