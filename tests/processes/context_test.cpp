// A GPU context that is lost, as after an illegal access: on either side, and what the other sees.
#include "tests/processes/sharing_support.h"

namespace limbo::testing {
namespace {

using std::chrono::milliseconds;

class ContextTest : public SharingTest {
 protected:
  // A process without a context cannot give its memory back: no balance. What the other has, is.
  void TearDown() override {
    for (Peer* peer : {&sender_, &reader_}) {
      if (lost_ == peer) peer->process().kill();
    }
    if (lost_ == &reader_) {
      EXPECT_TRUE(sender_.becomes("limbo", 0));
      EXPECT_TRUE(sender_.becomes("held_claims", 0));
      sender_.check_invariants();
      sender_.expect_balance();
    } else {
      reader_.expect_balance(true);
    }
  }
  void lose(Peer& peer) {
    lost_ = &peer;
    ASSERT_TRUE(peer.lose_context());
  }

  Peer* lost_ = nullptr;
};

// Everything that the reader holds, has released and releases later comes back, by the host.
TEST_F(ContextTest, AReaderThatLosesItsContextGivesEverythingBack) {
  sender_.allocate("b", kMiB, 1);
  reader_.use_stream("s");
  for (const char* name : {"held", "behind", "idle"}) reader_.receive(name, sender_.share("b"));
  reader_.drop("idle");
  reader_.synchronize();
  reader_.write_for("behind", 2, milliseconds(200));
  reader_.drop("behind");
  lose(reader_);
  EXPECT_TRUE(reader_.becomes("releases_pending", 0));
  EXPECT_TRUE(sender_.becomes("held_claims", 1));
  reader_.drop("held");
  sender_.free("b");
  expect_all_back();
  EXPECT_EQ(reader_.process().output(), "");
}

TEST_F(ContextTest, ReleasesThatWaitAndThoseThatAreParkedComeBackToo) {
  sender_.allocate("b", kMiB, 1);
  const std::string messages = sender_.call("repeat 400 share b -1");
  reader_.use_stream("s");
  reader_.call("receive_many r " + messages);
  reader_.receive("captured", sender_.share("b"));
  reader_.write_for("r0", 2, milliseconds(300));
  reader_.call("repeat 400 drop r%");
  reader_.begin_capture();
  reader_.drop("captured");
  reader_.use_stream("default");
  lose(reader_);
  EXPECT_TRUE(reader_.becomes("releases_pending", 0));
  sender_.free("b");
  expect_all_back();
}

TEST_F(ContextTest, TheSenderIsToldAndTheReaderRefusesToReceive) {
  sender_.allocate("b", kMiB, 1);
  reader_.receive("r", sender_.share("b"));
  lose(reader_);
  const std::string message = sender_.share("b");
  try {
    reader_.receive("more", message);
    ADD_FAILURE() << "received without a context";
  } catch (const PeerError& failure) {
    EXPECT_EQ(failure.code(), "device_error");
    EXPECT_NE(std::string(failure.what()).find("lost"), std::string::npos) << failure.what();
  }
  EXPECT_TRUE(eventually([&] {
    const auto holders = sender_.holders();
    return holders.size() == 1 && holders[0].find("context is lost") != std::string::npos;
  }));
  reader_.drop("r");
  sender_.free("b");
  expect_all_back();
}

// A sender's work will not come: who waits for it goes on, and knows.
TEST_F(ContextTest, ASenderThatLosesItsContextCompletesItsReadersWaits) {
  LIMBO_NEEDS_SIMULATED_DEVICE();  // on hardware the kernel ends before the error is reported
  sender_.allocate("b", kMiB, 1);
  sender_.allocate("c", kMiB, 1);
  reader_.receive("known", sender_.share("b"));
  sender_.use_stream("s");
  sender_.call("hold_stream");
  const std::string message = sender_.share("b");
  reader_.receive("r", message);
  EXPECT_FALSE(reader_.orphaned("r"));
  sender_.use_stream("default");
  lose(sender_);
  EXPECT_TRUE(eventually([&] { return reader_.orphaned("r"); }));
  EXPECT_TRUE(reader_.orphaned("known"));
  reader_.synchronize();  // it does not hang
  EXPECT_EQ(error_of([&] { (void)sender_.share("c"); }), "device_error");
  reader_.drop("r");
  reader_.drop("known");
  EXPECT_TRUE(reader_.becomes("releases_pending", 0));
}

TEST_F(ContextTest, ASenderWithoutAContextIsNotReceivedFromAnyMore) {
  sender_.allocate("b", kMiB, 1);
  reader_.receive("r", sender_.share("b"));
  const std::string message = sender_.share("b");
  lose(sender_);
  EXPECT_TRUE(eventually([&] { return reader_.orphaned("r"); }));
  EXPECT_EQ(error_of([&] { reader_.receive("more", message); }), "producer_exited");
  reader_.drop("r");
  EXPECT_TRUE(reader_.becomes("releases_pending", 0));
  // The blocks in limbo stay there; asking for what there is does no harm.
  sender_.collect();
  EXPECT_GE(sender_.stat("limbo"), 0);
}

}  // namespace
}  // namespace limbo::testing
