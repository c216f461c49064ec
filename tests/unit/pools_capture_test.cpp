// Pools while a graph is captured: what an allocation may and may not do then.
#include <thread>

#include "tests/unit/allocator_support.h"

namespace limbo::testing {
namespace {

constexpr PoolId kGraphPool{0, 1};

class PoolsInCapture : public AllocatorTest {
 protected:
  explicit PoolsInCapture(int memory_mb = 2048) : AllocatorTest(1, memory_mb) {}

  void begin(SimCaptureMode mode = SimCaptureMode::kGlobal) {
    sim_->begin_capture(captured_, mode);
    allocator_.begin_allocate_to_pool(
        0, kGraphPool, [this](StreamHandle handle) { return handle == captured_.handle; });
  }
  // The capture is still whole at its end.
  void end() {
    const std::unique_ptr<SimGraph> graph = sim_->end_capture(captured_);
    EXPECT_NE(graph, nullptr);
    allocator_.end_allocate_to_pool(0, kGraphPool);
    allocator_.release_pool(0, kGraphPool);
  }

  const StreamRef captured_ = stream();
  const StreamRef side_ = stream();
};

TEST_F(PoolsInCapture, NewMemoryIsTakenAndTheCaptureGoesOn) {
  begin();
  std::byte* first = allocate(4096, captured_);
  std::byte* second = allocate(64 * kMiB, captured_);
  end();
  EXPECT_EQ(allocator_.snapshot(0, kGraphPool).size(), 2U);
  allocator_.free(first);
  allocator_.free(second);
}

TEST_F(PoolsInCapture, NoEventIsAskedOrRecorded) {
  std::byte* earlier = allocate(4096);
  EXPECT_TRUE(allocator_.record_stream(earlier, side_));
  std::byte* meanwhile = allocate(4096);
  EXPECT_TRUE(allocator_.record_stream(meanwhile, side_));
  allocator_.free(earlier);
  sim_->wait_until_idle();
  begin();
  std::byte* inside = allocate(4096, captured_);
  EXPECT_TRUE(allocator_.record_stream(inside, side_));
  sim_->reset_calls();
  allocator_.free(meanwhile);
  allocator_.free(inside);
  std::byte* other = allocate(4096);
  std::byte* next = allocate(4096, captured_);
  EXPECT_NE(other, earlier);
  EXPECT_NE(next, inside);
  allocator_.empty_cache();
  EXPECT_EQ(sim_->calls(CallKind::kRecordEvent), 0U);
  EXPECT_EQ(sim_->calls(CallKind::kQueryEvent), 0U);
  EXPECT_EQ(active(), 5 * 4096);
  end();
  allocator_.free(other);
  allocator_.free(next);
  allocator_.empty_cache();  // now they are
  EXPECT_EQ(sim_->calls(CallKind::kRecordEvent), 2U);
  EXPECT_EQ(active(), 0);
}

TEST_F(PoolsInCapture, NothingGoesBackToTheDriver) {
  allocator_.free(allocate(40 * kMiB));
  allocator_.retain_pool(0, {0, 2});
  allocator_.begin_allocate_to_pool(0, {0, 2}, [](StreamHandle) { return true; });
  allocator_.free(allocate(40 * kMiB));
  allocator_.end_allocate_to_pool(0, {0, 2});
  allocator_.release_pool(0, {0, 2});
  begin();
  allocator_.release_pool(0, {0, 2});
  sim_->reset_calls();
  allocator_.empty_cache();
  allocator_.empty_cache(0, {0, 2});
  EXPECT_EQ(sim_->calls(CallKind::kFree), 0U);
  EXPECT_EQ(allocator_.snapshot(0, {0, 2}).size(), 1U);
  end();
  // The pool's was asked for, and comes with the end.
  EXPECT_EQ(sim_->calls(CallKind::kFree), 1U);
  EXPECT_TRUE(allocator_.snapshot(0, {0, 2}).empty());
}

// The route's end has done its part: a capture's caller would take the graph for lost.
TEST_F(PoolsInCapture, APutOffReturnThatFailsIsTriedAgain) {
  constexpr PoolId kGone{0, 2};
  allocator_.begin_allocate_to_pool(0, kGone, [](StreamHandle) { return true; });
  allocator_.free(allocate(40 * kMiB));
  allocator_.end_allocate_to_pool(0, kGone);
  begin();
  allocator_.release_pool(0, kGone);
  allocator_.empty_cache(0, kGone);
  sim_->faults().add("free:1=fail");
  end();
  allocator_.check_invariants();
  EXPECT_EQ(allocator_.snapshot(0, kGone).size(), 1U);
  begin();
  end();
  EXPECT_TRUE(allocator_.snapshot(0, kGone).empty());
}

// A route is no capture: torch.cuda.MemPool has one for hours, and who fails between its begin and
// its end leaves one for good.
class PoolsBesideARoute : public PoolsInCapture {
 protected:
  PoolsBesideARoute() : PoolsInCapture(64) {}
  void SetUp() override {
    allocator_.begin_allocate_to_pool(
        0, kOther, [](StreamHandle) { return false; }, side_.handle);
  }
  void TearDown() override {
    allocator_.end_allocate_to_pool(0, kOther);
    allocator_.release_pool(0, kOther);
    PoolsInCapture::TearDown();
  }
  // A pool without uses that has memory.
  void leave_pool() {
    allocator_.begin_allocate_to_pool(
        0, kGone, [](StreamHandle) { return true; }, side_.handle);
    allocator_.free(allocate(30 * kMiB));
    allocator_.end_allocate_to_pool(0, kGone);
    allocator_.release_pool(0, kGone);
  }

  static constexpr PoolId kOther{0, 7};
  static constexpr PoolId kGone{0, 8};
};

TEST_F(PoolsBesideARoute, MemoryGoesBack) {
  allocator_.free(allocate(20 * kMiB));
  leave_pool();
  allocator_.empty_cache(0, kGone);
  EXPECT_TRUE(allocator_.snapshot(0, kGone).empty());
  EXPECT_EQ(reserved(), static_cast<std::int64_t>(20 * kMiB));
  leave_pool();
  allocator_.empty_cache();
  EXPECT_EQ(reserved(), 0);
}

TEST_F(PoolsBesideARoute, RoomIsMadeForBothPools) {
  allocator_.free(allocate(40 * kMiB));
  std::byte* data = allocate(60 * kMiB);
  EXPECT_EQ(allocator_.stats(0).num_alloc_retries, 1);
  allocator_.free(data);
  allocator_.begin_allocate_to_pool(
      0, kGraphPool, [](StreamHandle) { return true; }, side_.handle);
  data = allocate(50 * kMiB);
  EXPECT_EQ(allocator_.stats(0).num_alloc_retries, 2);
  allocator_.free(data);
  allocator_.end_allocate_to_pool(0, kGraphPool);
  allocator_.release_pool(0, kGraphPool);
}

TEST_F(PoolsBesideARoute, EventsAreRecordedAndAsked) {
  std::byte* data = allocate(4096);
  EXPECT_TRUE(allocator_.record_stream(data, side_));
  allocator_.free(data);
  EXPECT_EQ(sim_->calls(CallKind::kRecordEvent), 1U);
  sim_->wait_until_idle();
  EXPECT_EQ(allocate(4096), data);
  allocator_.free(data);
}

TEST_F(PoolsBesideARoute, ACaptureIsRespectedAllTheSame) {
  for (const StreamRef captured : {side_, captured_}) {
    allocator_.free(allocate(20 * kMiB));
    leave_pool();
    std::byte* data = allocate(4096);
    EXPECT_TRUE(allocator_.record_stream(data, {0, sim_->create_stream(0)}));
    allocator_.begin_allocate_to_pool(
        0, kGraphPool, [=](StreamHandle stream) { return stream == captured.handle; },
        captured.handle);
    sim_->begin_capture(captured, SimCaptureMode::kGlobal);
    sim_->reset_calls();
    allocator_.free(data);
    allocator_.empty_cache();
    allocator_.empty_cache(0, kGone);
    EXPECT_EQ(sim_->calls(CallKind::kFree), 0U);
    EXPECT_EQ(sim_->calls(CallKind::kRecordEvent), 0U);
    EXPECT_NE(sim_->end_capture(captured), nullptr);
    allocator_.end_allocate_to_pool(0, kGraphPool);
    // What was asked for comes with the end of the capture's route, whatever other routes stand.
    EXPECT_TRUE(allocator_.snapshot(0, kGone).empty());
    allocator_.release_pool(0, kGraphPool);
    allocator_.empty_cache();
    EXPECT_EQ(reserved(), 0);
  }
}

TEST_F(PoolsBesideARoute, AStreamThatCannotBeAskedCountsAsCaptured) {
  allocator_.free(allocate(20 * kMiB));
  const StreamRef gone = stream();
  allocator_.begin_allocate_to_pool(
      0, kGraphPool, [](StreamHandle) { return false; }, gone.handle);
  sim_->destroy_stream(gone);
  allocator_.empty_cache();
  EXPECT_EQ(reserved(), static_cast<std::int64_t>(20 * kMiB));
  allocator_.end_allocate_to_pool(0, kGraphPool);
  allocator_.release_pool(0, kGraphPool);
  allocator_.empty_cache();
  EXPECT_EQ(reserved(), 0);
}

TEST_F(PoolsInCapture, OtherThreadsAllocateInEveryMode) {
  for (const SimCaptureMode mode :
       {SimCaptureMode::kGlobal, SimCaptureMode::kThreadLocal, SimCaptureMode::kRelaxed}) {
    std::byte* waits = allocate(4096);
    EXPECT_TRUE(allocator_.record_stream(waits, side_));
    allocator_.free(waits);
    begin(mode);
    std::byte* inside = allocate(4096, captured_);
    std::thread([&] {
      std::byte* data = allocate(10 * kMiB);
      EXPECT_TRUE(allocator_.record_stream(data, side_));
      allocator_.free(data);
      allocator_.free(allocate(10 * kMiB));
    }).join();
    end();
    allocator_.free(inside);
    allocator_.empty_cache();
    EXPECT_EQ(active(), 0);
  }
}

// With the policy that lets a capture reuse what other streams are done with.
class PoolsReusedInCapture : public PoolsInCapture {
 protected:
  PoolsReusedInCapture() {
    AllocationPolicy policy;
    policy.reuse_in_capture = true;
    allocator_.set_policy(policy);
  }

  void wait(StreamRef behind, StreamRef stream) {
    const EventHandle event = sim_->create_event(0);
    sim_->record_event(stream, event);
    sim_->wait_event(behind, event);
    sim_->destroy_event(0, event);
  }
  // A block that `users` write, each in the capture, and that is freed then.
  [[nodiscard]] std::byte* used_and_freed(const std::vector<StreamRef>& users) {
    std::byte* data = allocate(4096, captured_);
    for (const StreamRef user : users) {
      wait(user, captured_);
      sim_->fill(user, data, 7, 1024);
      EXPECT_TRUE(allocator_.record_stream(data, user));
    }
    allocator_.free(data);
    return data;
  }
  [[nodiscard]] bool comes_again(std::byte* data) {
    std::byte* got = allocate(4096, captured_);
    kept_.push_back(got);
    return got == data;
  }
  void TearDown() override {
    for (std::byte* data : kept_) allocator_.free(data);
    PoolsInCapture::TearDown();
  }

 private:
  std::vector<std::byte*> kept_;
};

TEST_F(PoolsReusedInCapture, BehindTheJoinAndNotBefore) {
  begin();
  std::byte* data = used_and_freed({side_});
  EXPECT_FALSE(comes_again(data));
  wait(captured_, side_);
  EXPECT_TRUE(comes_again(data));
  EXPECT_EQ(sim_->calls(CallKind::kQueryEvent), 0U);
  end();
}

TEST_F(PoolsReusedInCapture, BehindAllOfSeveralStreams) {
  const StreamRef third = stream();
  const StreamRef fourth = stream();
  begin();
  std::byte* data = used_and_freed({side_, third, fourth});
  wait(captured_, side_);
  EXPECT_FALSE(comes_again(data));
  wait(third, fourth);
  EXPECT_FALSE(comes_again(data));
  wait(captured_, third);  // and so, by way of it, behind the fourth
  EXPECT_TRUE(comes_again(data));
  end();
}

TEST_F(PoolsReusedInCapture, NotBehindAnEarlierJoin) {
  begin();
  std::byte* first = allocate(4096, captured_);
  wait(side_, captured_);
  sim_->fill(side_, first, 1, 1024);
  wait(captured_, side_);
  sim_->fill(side_, first, 2, 1024);  // behind what was joined
  EXPECT_TRUE(allocator_.record_stream(first, side_));
  allocator_.free(first);
  EXPECT_FALSE(comes_again(first));
  wait(captured_, side_);
  EXPECT_TRUE(comes_again(first));
  end();
}

TEST_F(PoolsReusedInCapture, NotWhereAStreamThatIsNotCapturedUsesIt) {
  begin();
  std::byte* data = allocate(4096, captured_);
  EXPECT_TRUE(allocator_.record_stream(data, side_));
  allocator_.free(data);
  EXPECT_FALSE(comes_again(data));
  end();
  allocator_.empty_cache();
  EXPECT_EQ(active(), 4096);
}

TEST_F(PoolsReusedInCapture, WhatIsNotReusedComesBackBehindTheCapture) {
  begin();
  static_cast<void>(used_and_freed({side_}));
  wait(captured_, side_);
  end();
  EXPECT_EQ(active(), 4096);
  allocator_.empty_cache();
  EXPECT_EQ(active(), 0);
}

TEST_F(PoolsReusedInCapture, OnlyWhereThePolicySaysSo) {
  allocator_.set_policy({});
  begin();
  std::byte* data = used_and_freed({side_});
  wait(captured_, side_);
  EXPECT_FALSE(comes_again(data));
  end();
}

class PoolsInFullCapture : public PoolsInCapture {
 protected:
  PoolsInFullCapture() : PoolsInCapture(80) {}
};

TEST_F(PoolsInFullCapture, OutOfMemoryLeavesEverythingWhole) {
  allocator_.free(allocate(40 * kMiB));  // would go back, were there no capture
  begin();
  std::byte* inside = allocate(20 * kMiB, captured_);
  sim_->reset_calls();
  static_cast<void>(out_of_memory([&] { static_cast<void>(allocate(40 * kMiB, captured_)); }));
  EXPECT_EQ(sim_->calls(CallKind::kFree), 0U);
  EXPECT_EQ(sim_->calls(CallKind::kQueryEvent), 0U);
  allocator_.check_invariants();
  std::byte* more = allocate(10 * kMiB, captured_);
  end();
  std::byte* after = allocate(40 * kMiB, captured_);
  EXPECT_EQ(allocator_.stats(0).num_ooms, 1);
  for (std::byte* data : {inside, more, after}) allocator_.free(data);
}

// Somebody who captures without telling the allocator.
TEST_F(PoolsInFullCapture, ACapturingStreamWithoutAPoolGivesNothingBackEither) {
  allocator_.free(allocate(40 * kMiB));
  sim_->begin_capture(captured_, SimCaptureMode::kGlobal);
  sim_->reset_calls();
  static_cast<void>(out_of_memory([&] { static_cast<void>(allocate(60 * kMiB, captured_)); }));
  EXPECT_EQ(sim_->calls(CallKind::kFree), 0U);
  std::byte* inside = allocate(20 * kMiB, captured_);
  EXPECT_NE(sim_->end_capture(captured_), nullptr);
  allocator_.free(inside);
}

}  // namespace
}  // namespace limbo::testing
