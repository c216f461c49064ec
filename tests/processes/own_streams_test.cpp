// A message opened where it was sent, and streams that used it and are gone when it ends.
#include "tests/processes/sharing_support.h"

namespace limbo::testing {
namespace {

using std::chrono::milliseconds;

class OwnStreamsTest : public SharingTest {
 protected:
  void SetUp() override {
    // NVIDIA's driver takes no handle of a stream that was destroyed.
    LIMBO_NEEDS_SIMULATED_DEVICE();
  }
  void open_own(Peer& peer, const std::string& name = "own") {
    peer.allocate("b", kMiB, 1);
    peer.receive(name, peer.share("b"));
  }
};

TEST_F(OwnStreamsTest, ARecordedStreamThatWasDestroyedKeepsNothing) {
  open_own(sender_);
  sender_.record_stream("own", "s");
  sender_.destroy_stream("s");
  sender_.drop("own");
  sender_.free("b");
  expect_all_back();
}

TEST_F(OwnStreamsTest, AReceivingStreamThatWasDestroyedKeepsNothing) {
  sender_.allocate("b", kMiB, 1);
  const std::string message = sender_.share("b");
  sender_.use_stream("s");
  sender_.receive("own", message);
  sender_.use_stream("default");
  sender_.destroy_stream("s");
  sender_.drop("own");
  sender_.free("b");
  expect_all_back();
}

// Another stream by that time, perhaps under the same handle, tells nothing about the first.
TEST_F(OwnStreamsTest, WhatADestroyedStreamHadQueuedIsWaitedFor) {
  open_own(sender_);
  sender_.use_stream("s");
  sender_.record_stream("own", "s");
  sender_.write_for("own", 2, milliseconds(600));
  sender_.use_stream("default");
  sender_.destroy_stream("s");
  sender_.use_stream("t");
  sender_.use_stream("default");
  sender_.drop("own");
  sender_.free("b");
  EXPECT_FALSE(sender_.becomes("limbo", 0, milliseconds(150)));
  expect_all_back();
}

// While a stream that was named in a capture has no id, its device is waited for.
TEST_F(OwnStreamsTest, AStreamThatWasNamedInACaptureAndDestroyedKeepsNothing) {
  open_own(sender_);
  sender_.use_stream("s");
  sender_.begin_capture();
  sender_.record_stream("own", "s");
  sender_.end_capture("graph");
  sender_.use_stream("default");
  sender_.destroy_stream("s");
  sender_.drop("own");
  sender_.free("b");
  EXPECT_FALSE(sender_.becomes("limbo", 0, milliseconds(100)));  // the graph uses it
  sender_.destroy_graph("graph");
  expect_all_back();
}

TEST_F(OwnStreamsTest, AStreamOfALostDeviceKeepsNothing) {
  const Sandbox two_gpus;
  Peer sender(with({{"LIMBO_SIM_DEVICES", "2"}}));
  open_own(sender);
  sender.record_stream("own", "default", 1);
  ASSERT_TRUE(sender.lose_context(1));
  sender.drop("own");
  sender.free("b");
  EXPECT_TRUE(sender.becomes("limbo", 0));
  sender.process().kill();
}

}  // namespace
}  // namespace limbo::testing
