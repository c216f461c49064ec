// A GPU context that is lost, as after an illegal access: on either side, and what the other sees.
#include <chrono>
#include <optional>
#include <thread>

#include "allocator/device/device.h"
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

// ---- one of two GPUs --------------------------------------------------------------------------

// A reader on two GPUs, which used blocks of one on streams of both, and has lost the context of
// one: that one's streams do nothing any more, the other's are waited for.
class OneContextTest : public ::testing::Test {
 protected:
  static ChildOptions on_two_gpus() {
    return with({{"LIMBO_SIM_DEVICES", "2"}, {"CUDA_VISIBLE_DEVICES", "0,1"}});
  }
  void SetUp() override {
    if (!on_simulated_device() && process_device().device_count() < 2) {
      GTEST_SKIP() << "needs two GPUs, or the simulated device";
    }
    sender_.emplace(on_two_gpus());
    reader_.emplace(on_two_gpus());
    sender_->allocate("b", kMiB, 1);
    // Not later: it waits for the second GPU, whose streams wait for the first one's by then.
    reader_->call("prepare_to_lose 1");
  }
  // Received on one, and used on the default stream of the other.
  void receive(const std::string& name, int device = 0) {
    reader_->receive(name, sender_->share("b"), device);
    reader_->record_stream(name, "default", 1 - device);
  }
  // Everything comes back to the sender, with no action by anyone.
  void expect_all_back() {
    free_and_expect_it_back();
    expect_a_good_end();
  }
  // On hardware the fault of one GPU makes the others report a loss too, while what they run may run
  // on: what both have used comes back when the process has ended.
  void free_and_expect_it_back() {
    sender_->free("b");
    if (!on_simulated_device()) reader_->process().kill();
    EXPECT_TRUE(sender_->becomes("held_claims", 0));
    EXPECT_TRUE(sender_->becomes("limbo", 0));
    if (on_simulated_device()) {
      EXPECT_TRUE(reader_->becomes("releases_pending", 0));
    }
  }
  void expect_a_good_end() {
    sender_->check_invariants();
    if (on_simulated_device()) reader_->process().kill();
    sender_->expect_balance();
  }

  Sandbox sandbox_;
  std::optional<Peer> sender_;
  std::optional<Peer> reader_;
};

TEST_F(OneContextTest, WhatIsReleasedLaterComesBack) {
  receive("r");
  ASSERT_TRUE(reader_->lose_context(1));
  reader_->drop("r");
  expect_all_back();
}

TEST_F(OneContextTest, WhatIsReleasedLaterComesBackWhereTheMappingIsTheLostOnes) {
  receive("r", 1);
  ASSERT_TRUE(reader_->lose_context(1));
  reader_->drop("r");
  expect_all_back();
}

// Released before, and still behind the work of the other GPU: what came back is written by nobody.
TEST_F(OneContextTest, WhatWasReleasedComesBackBehindTheOtherGpusWork) {
  for (const int device : {0, 1}) receive("r" + std::to_string(device), device);
  // A GPU takes a second or two to find and to end what lost a context.
  const milliseconds duration(on_simulated_device() ? 2000 : 6000);
  const auto begin = std::chrono::steady_clock::now();
  const auto since = [&] { return std::chrono::steady_clock::now() - begin; };
  reader_->write_for("r0", 2, duration);
  for (const char* name : {"r0", "r1"}) reader_->drop(name);
  ASSERT_TRUE(reader_->lose_context(1));
  const auto lost_after = since();
  EXPECT_TRUE(sender_->becomes("in_flight", 0));
  for (const std::int64_t fewer : {1, 0}) {
    const bool came_back = sender_->becomes("held_claims", fewer, milliseconds(150));
    ASSERT_LT(since(), duration) << "the write has ended before; the loss was seen after "
                                 << lost_after.count() / 1'000'000 << " ms";
    EXPECT_FALSE(came_back);
  }
  free_and_expect_it_back();
  const auto back_after = since();
  for (const char* name : {"canary", "beside"}) sender_->allocate(name, kMiB, 9);  // the segment
  if (since() < duration) std::this_thread::sleep_for(duration - since());
  for (const char* name : {"canary", "beside"}) {
    EXPECT_TRUE(sender_->holds(name, 9))
        << "written after it was back, which was after " << back_after.count() / 1'000'000 << " ms";
    sender_->free(name);
  }
  expect_a_good_end();
}

// Who has faulted cannot be told then, and what the other runs may run on.
TEST_F(OneContextTest, WhatTwoLostGpusHaveUsedComesBackWithTheEndOfTheProcess) {
  for (const char* name : {"before", "after"}) receive(name);
  reader_->write_for("before", 2, milliseconds(100));
  reader_->drop("before");
  ASSERT_TRUE(reader_->lose_context(1));
  if (on_simulated_device()) {
    ASSERT_TRUE(reader_->lose_context(0));
  }
  reader_->drop("after");
  sender_->free("b");
  EXPECT_TRUE(sender_->becomes("in_flight", 0));
  EXPECT_TRUE(reader_->becomes("releases_pending", 0));
  EXPECT_FALSE(sender_->becomes("limbo", 0, milliseconds(200)));
  reader_->process().kill();
  EXPECT_TRUE(sender_->becomes("limbo", 0));
  EXPECT_TRUE(sender_->becomes("held_claims", 0));
  sender_->check_invariants();
  sender_->expect_balance();
}

// More than one stream takes at once, so that most wait for room.
TEST_F(OneContextTest, ReleasesThatWaitComeBackToo) {
  const std::string messages = sender_->call("repeat 400 share b -1");
  reader_->call("receive_many r " + messages);
  reader_->call("repeat 400 record_stream r% default 1");
  reader_->write_for("r0", 2, milliseconds(300));
  reader_->call("repeat 400 drop r%");
  ASSERT_TRUE(reader_->lose_context(1));
  expect_all_back();
}

// ---- two of three GPUs ------------------------------------------------------------------------

// A reader that used blocks on two of its three GPUs. The third one is lost, and then one of the two:
// which of them faulted cannot be told, so what that one runs may run on, though the other goes on.
class TwoContextsTest : public SharingTest {
 protected:
  static ChildOptions on_three_gpus() {
    return with({{"LIMBO_SIM_DEVICES", "3"}, {"CUDA_VISIBLE_DEVICES", "0,1,2"}});
  }
  TwoContextsTest() : SharingTest(on_three_gpus()) {}
  void SetUp() override {
    LIMBO_NEEDS_SIMULATED_DEVICE();
    sender_.allocate("b", kMiB, 1);
  }
  void TearDown() override {
    if (!IsSkipped()) SharingTest::TearDown();
  }
  void receive(const std::string& name, int device = 0) {
    reader_.receive(name, sender_.share("b"), device);
    reader_.record_stream(name, "default", 1 - device);
  }
  void lose_two(int of_the_used = 0) {
    ASSERT_TRUE(reader_.lose_context(2));
    ASSERT_TRUE(reader_.lose_context(of_the_used));
  }
  // Of the releases none is over before the process is, and all that was lent is held until then.
  void expect_back_with_its_end(std::int64_t claims) {
    sender_.free("b");
    EXPECT_TRUE(sender_.becomes("in_flight", 0));
    EXPECT_TRUE(reader_.becomes("releases_pending", 0));
    EXPECT_FALSE(sender_.becomes("limbo", 0, milliseconds(200)));
    EXPECT_EQ(sender_.stat("held_claims"), claims);
    reader_.process().kill();
    EXPECT_TRUE(sender_.becomes("limbo", 0));
  }
};

TEST_F(TwoContextsTest, WhatIsReleasedLaterComesBackWithTheEndOfTheProcess) {
  for (const int device : {0, 1}) receive("r" + std::to_string(device), device);
  lose_two();
  for (const char* name : {"r0", "r1"}) reader_.drop(name);
  expect_back_with_its_end(2);
}

TEST_F(TwoContextsTest, WhatWasReleasedComesBackWithTheEndOfTheProcess) {
  receive("r");
  reader_.call("hold_stream");
  reader_.drop("r");
  lose_two();
  expect_back_with_its_end(1);
}

// A stream of the GPU that goes on is gone: the release would wait until that one is idle.
TEST_F(TwoContextsTest, SoDoesWhatAStreamHasUsedThatIsGone) {
  reader_.receive("r", sender_.share("b"), 1);
  reader_.use_stream("s");
  reader_.record_stream("r", "s", 0);
  reader_.use_stream("default");
  reader_.destroy_stream("s");
  lose_two(1);
  reader_.drop("r");
  expect_back_with_its_end(1);
}

// The same within one process, which opens what it sent itself. The first is lost alone when it is
// asked about, so its work has ended.
TEST_F(TwoContextsTest, WhatAProcessSentItselfStaysInUse) {
  for (const char* name : {"b2", "b1"}) {
    reader_.allocate(name, kMiB, 2);
    reader_.receive("own_" + std::string(name), reader_.share(name));
  }
  reader_.record_stream("own_b2", "default", 2);
  reader_.record_stream("own_b1", "default", 1);
  ASSERT_TRUE(reader_.lose_context(2));
  reader_.drop("own_b2");
  reader_.free("b2");
  EXPECT_TRUE(reader_.becomes("limbo", 0));
  ASSERT_TRUE(reader_.lose_context(1));
  reader_.drop("own_b1");
  reader_.free("b1");
  EXPECT_FALSE(reader_.becomes("limbo", 0, milliseconds(200)));
  reader_.process().kill();
  sender_.free("b");
}

TEST_F(TwoContextsTest, SoDoReleasesThatWait) {
  const std::string messages = sender_.call("repeat 400 share b -1");
  reader_.call("receive_many r " + messages);
  reader_.call("repeat 400 record_stream r% default 1");
  reader_.call("hold_stream");
  reader_.call("repeat 400 drop r%");
  lose_two();
  expect_back_with_its_end(400);
}

}  // namespace
}  // namespace limbo::testing
