// Forwarders whose work will not come: they lose their GPU context, or die. Nobody waits for them,
// and what they have not written is known as such.
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

}  // namespace
}  // namespace limbo::testing
