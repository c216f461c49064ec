// A message opened where it was sent, and streams that used it and are gone when it ends.
#include <unistd.h>

#include <fstream>

#include "tests/processes/sharing_support.h"

namespace limbo::testing {
namespace {

using std::chrono::milliseconds;

// Processor time that all threads of a process have taken.
milliseconds processor_time_of(pid_t process) {
  std::ifstream stat("/proc/" + std::to_string(process) + "/stat");
  std::string skipped;
  std::getline(stat, skipped, ')');
  for (int field = 3; field < 14; ++field) stat >> skipped;
  long user = -1;
  long system = -1;
  stat >> user >> system;
  EXPECT_GE(system, 0);
  return milliseconds((user + system) * 1000 / ::sysconf(_SC_CLK_TCK));
}

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
  // A graph uses it, which was captured on a stream "s".
  void open_own_in_graph() {
    open_own(sender_);
    sender_.use_stream("s");
    sender_.begin_capture();
    sender_.record_stream("own", "s");
    sender_.end_capture("graph");
    sender_.use_stream("default");
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
  open_own_in_graph();
  sender_.destroy_stream("s");
  sender_.drop("own");
  sender_.free("b");
  EXPECT_FALSE(sender_.becomes("limbo", 0, milliseconds(100)));  // the graph uses it
  sender_.destroy_graph("graph");
  expect_all_back();
}

// What waits is looked at now and then, not all the time.
TEST_F(OwnStreamsTest, AGraphThatLivesOnKeepsNoThreadBusy) {
  open_own_in_graph();
  sender_.drop("own");
  sender_.free("b");
  EXPECT_FALSE(sender_.becomes("limbo", 0, milliseconds(100)));
  const milliseconds before = processor_time_of(sender_.process().pid());
  std::this_thread::sleep_for(milliseconds(600));
  EXPECT_LT(processor_time_of(sender_.process().pid()) - before, milliseconds(100));
  sender_.destroy_graph("graph");
  expect_all_back();
}

TEST_F(OwnStreamsTest, ADeviceThatCannotBeWaitedForIsAskedNowAndThen) {
  open_own(sender_);
  sender_.record_stream("own", "s");
  sender_.destroy_stream("s");
  sender_.set_faults("synchronize:*=fail");
  sender_.drop("own");
  sender_.free("b");
  ASSERT_TRUE(eventually([&] { return sender_.calls("synchronize") > 0; }));
  const auto begin = std::chrono::steady_clock::now();
  const std::uint64_t before = sender_.calls("synchronize");
  std::this_thread::sleep_for(milliseconds(300));
  const std::uint64_t calls = sender_.calls("synchronize") - before;
  EXPECT_LT(calls, 10 + (std::chrono::steady_clock::now() - begin) / milliseconds(20));
  EXPECT_GT(sender_.stat("limbo"), 0);
  sender_.set_faults("");
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
