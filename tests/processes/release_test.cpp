// Releases: thousands, those that the driver refuses, streams that are gone when it gets there.
#include "tests/processes/sharing_support.h"

namespace limbo::testing {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kLong{1000};  // a kernel that outlasts what the test does meanwhile

class ReleaseTest : public SharingTest {
 protected:
  // The reader's releases of `count` messages of one block wait behind a kernel on stream "s".
  void release_behind_a_kernel(int count) {
    sender_.allocate("b", kMiB, 1);
    reader_.use_stream("s");
    for (int index = 0; index < count; ++index) {
      reader_.receive("r" + std::to_string(index), sender_.share("b"));
    }
    reader_.write_for("r0", 3, kLong);
    for (int index = 0; index < count; ++index) reader_.drop("r" + std::to_string(index));
    sender_.free("b");
  }
};

constexpr int kTakenAtOnce = 256;  // releases that a stream takes before earlier ones have landed
constexpr int kLater = 10;

// Thousands of releases behind one kernel: the host goes on, and they come back in few batches.
TEST_F(ReleaseTest, ThousandsBehindOneKernelDoNotWaitForIt) {
  constexpr int kMessages = 5000;
  sender_.allocate("b", kMiB, 1);
  const std::string messages = sender_.call("repeat " + std::to_string(kMessages) + " share b -1");
  reader_.use_stream("s");
  reader_.call("receive_many r " + messages);
  reader_.write_for("r0", 3, kLong);
  reader_.call("repeat " + std::to_string(kMessages) + " drop r%");
  // What was released has not landed: the host did not wait for the kernel.
  EXPECT_EQ(reader_.stat("releases_pending"), kMessages);
  EXPECT_TRUE(reader_.becomes("releases_pending", 0));
  sender_.free("b");
  expect_all_back();
}

// Each block is used on two streams, so every release waits on a stream of the library's own.
TEST_F(ReleaseTest, ThousandsOnSeveralStreamsFromSeveralThreads) {
  constexpr int kMessages = 2000;
  sender_.allocate("b", kMiB, 1);
  const std::string messages = sender_.call("repeat " + std::to_string(kMessages) + " share b -1");
  reader_.use_stream("s");
  reader_.call("receive_many r " + messages);
  reader_.call("repeat " + std::to_string(kMessages) + " record_stream r% t");
  reader_.write_for("r0", 3, kLong);
  reader_.call("drop_by_threads 4 r " + std::to_string(kMessages));
  EXPECT_EQ(reader_.stat("releases_pending"), kMessages);
  EXPECT_TRUE(reader_.becomes("releases_pending", 0));
  sender_.free("b");
  expect_all_back();
}

// Releases behind a kernel hold up none of another stream.
TEST_F(ReleaseTest, AFullStreamHoldsUpNoOther) {
  constexpr int kMessages = 600;
  sender_.allocate("b", kMiB, 1);
  const std::string messages = sender_.call("repeat " + std::to_string(kMessages) + " share b -1");
  reader_.use_stream("s");
  reader_.call("receive_many r " + messages);
  reader_.write_for("r0", 3, milliseconds(3000));
  reader_.call("repeat " + std::to_string(kMessages) + " drop r%");
  reader_.use_stream("t");
  reader_.receive("other", sender_.share("b"));
  reader_.drop("other");
  EXPECT_TRUE(reader_.becomes("releases_pending", kMessages));
  EXPECT_TRUE(reader_.becomes("releases_pending", 0));
  sender_.free("b");
  expect_all_back();
}

// A late batch that cannot be made, for want of host memory most likely, is none of which a release
// is lost.
TEST_F(ReleaseTest, ALateBatchThatFailsIsMadeAnew) {
  constexpr int kMessages = 400;
  sender_.allocate("b", kMiB, 1);
  const std::string messages = sender_.call("repeat " + std::to_string(kMessages) + " share b -1");
  reader_.use_stream("s");
  reader_.call("receive_many r " + messages);
  reader_.write_for("r0", 3, milliseconds(1000));
  reader_.set_fail_points("release.before_late=error");
  reader_.call("repeat " + std::to_string(kMessages) + " drop r%");
  EXPECT_TRUE(reader_.becomes("releases_pending", 0));
  EXPECT_TRUE(sender_.becomes("held_claims", 0));
  sender_.free("b");
  expect_all_back();
}

// While late releases of the one direction wait, the other goes on: sweeps, time limits, collects.
TEST_F(ReleaseTest, ASenderWhoseOwnReleasesWaitStillCollects) {
  LIMBO_NEEDS_SIMULATED_DEVICE();
  sender_.allocate("a", kMiB, 1);
  reader_.allocate("b", kMiB, 2);
  sender_.receive("held", reader_.share("b"));
  sender_.set_fail_points("release.before_enqueue=delay:3000");
  sender_.drop_aside("held");
  reader_.receive("x", sender_.share("a"));
  sender_.free("a");
  reader_.drop("x");
  EXPECT_TRUE(sender_.becomes("limbo", 0, milliseconds(2000)));
  sender_.join();
  reader_.free("b");
  EXPECT_TRUE(reader_.becomes("limbo", 0));
}

TEST_F(ReleaseTest, AThreadsOwnStreamIsRefusedByName) {
  sender_.allocate("b", kMiB, 1);
  reader_.receive("r", sender_.share("b"));
  EXPECT_EQ(error_of([&] { reader_.record_stream("r", "per_thread"); }), "bad_argument");
  const std::string message = sender_.share("b");
  reader_.use_stream("per_thread");
  EXPECT_EQ(error_of([&] { reader_.receive("other", message); }), "bad_argument");
  reader_.use_stream("default");
  sender_.receive("own", sender_.share("b"));
  EXPECT_EQ(error_of([&] { sender_.record_stream("own", "per_thread"); }), "bad_argument");
  sender_.drop("own");
  reader_.drop("r");
  sender_.free("b");
  expect_all_back();
}

// Not enough memory, say: it is tried again, and nothing is lost.
TEST_F(ReleaseTest, AnAttemptThatFailsIsRepeated) {
  sender_.allocate("b", kMiB, 1);
  for (const char* name : {"one", "two"}) reader_.receive(name, sender_.share("b"));
  reader_.record_stream("two", "side");
  sender_.free("b");
  reader_.set_fail_points("release.before_enqueue=error");
  reader_.drop("one");
  EXPECT_TRUE(reader_.becomes("releases_pending", 0));
  reader_.set_fail_points("release.before_enqueue=error");
  reader_.drop("two");
  expect_all_back();
  EXPECT_EQ(reader_.passed("release.before_enqueue"), 2U);
}

// The writer's kernel may still run: what the driver refuses comes back when its device is idle.
TEST_F(ReleaseTest, WhatTheDriverRefusesComesBackWhenTheDeviceIsIdle) {
  LIMBO_NEEDS_SIMULATED_DEVICE();
  for (const char* call : {"write_words", "stream_id", "is_capturing", "create_event",
                           "record_event", "wait_event", "create_stream"}) {
    Peer reader;
    sender_.allocate("b", kMiB, 1);
    reader.receive("r", sender_.share("b"));
    reader.record_stream("r", "side");
    sender_.free("b");
    reader.use_stream("side");
    reader.write_for("r", 2, milliseconds(300));
    reader.set_faults(std::string(call) + ":1=fail");
    reader.drop("r");
    EXPECT_EQ(reader.stat("releases_pending"), 1) << call;
    sender_.collect();
    EXPECT_GT(sender_.stat("limbo"), 0) << call;
    EXPECT_TRUE(sender_.becomes("limbo", 0)) << call;
    EXPECT_EQ(reader.process().output(), "") << call;
  }
}

TEST_F(ReleaseTest, AStreamThatIsDestroyedBeforeTheReleaseHoldsNothingBack) {
  LIMBO_NEEDS_SIMULATED_DEVICE();  // NVIDIA's driver crashes on a destroyed handle
  sender_.allocate("b", kMiB, 1);
  reader_.use_stream("s");
  reader_.receive("r", sender_.share("b"));
  sender_.free("b");
  reader_.use_stream("default");
  reader_.destroy_stream("s");
  reader_.drop("r");
  expect_all_back();
  reader_.leave(0);
  EXPECT_TRUE(reader_.process().wait().success());
  EXPECT_EQ(reader_.process().output(), "");
}

TEST_F(ReleaseTest, AStreamThatIsDestroyedBehindItsReleasesHoldsNothingBack) {
  LIMBO_NEEDS_SIMULATED_DEVICE();  // NVIDIA's driver crashes on a destroyed handle
  release_behind_a_kernel(kTakenAtOnce + kLater);
  reader_.use_stream("default");
  reader_.destroy_stream("s");
  EXPECT_TRUE(reader_.becomes("releases_pending", 0));
  expect_all_back();
}

}  // namespace
}  // namespace limbo::testing
