// record_stream: events at the free, asked on misses, waited for before memory goes back.
#include <future>
#include <thread>

#include "tests/support/eventually.h"
#include "tests/unit/allocator_support.h"

namespace limbo::testing {
namespace {

class AllocatorWaits : public AllocatorTest {
 protected:
  const StreamRef user_ = stream();
};

TEST_F(AllocatorWaits, AFreedBlockWaitsForTheStreamThatUsedIt) {
  std::byte* data = allocate(4096);
  EXPECT_TRUE(allocator_.record_stream(data + 17, user_));
  EXPECT_EQ(sim_->calls(CallKind::kRecordEvent), 0U);
  const SimHold hold = sim_->hold_stream(user_);
  allocator_.free(data);
  EXPECT_EQ(sim_->calls(CallKind::kRecordEvent), 1U);
  EXPECT_EQ(allocated(), 0);
  EXPECT_EQ(active(), 4096);
  EXPECT_ERROR(allocator_.free(data), kDoubleFree);
  std::byte* other = allocate(4096);
  EXPECT_NE(other, data);
  sim_->release_hold(hold);
  sim_->wait_until_idle();
  EXPECT_EQ(allocate(4096), data);  // the miss asked the event
  allocator_.free(data);
  allocator_.free(other);
}

TEST_F(AllocatorWaits, WaitsForEveryStream) {
  const StreamRef second = stream();
  std::byte* data = allocate(4096);
  EXPECT_TRUE(allocator_.record_stream(data, user_));
  EXPECT_TRUE(allocator_.record_stream(data, second));
  EXPECT_TRUE(allocator_.record_stream(data, second));  // once is enough
  const SimHold hold = sim_->hold_stream(second);
  allocator_.free(data);
  EXPECT_EQ(sim_->calls(CallKind::kRecordEvent), 2U);
  sim_->synchronize_stream(user_);
  std::byte* other = allocate(4096);
  EXPECT_NE(other, data);
  EXPECT_EQ(active(), 2 * 4096);
  sim_->release_hold(hold);
  allocator_.empty_cache();
  EXPECT_EQ(active(), 4096);
  allocator_.free(other);
}

TEST_F(AllocatorWaits, TheHomeStreamNeedsNoEvent) {
  std::byte* data = allocate(4096);
  EXPECT_TRUE(allocator_.record_stream(data, home_));
  allocator_.free(data);
  EXPECT_EQ(sim_->calls(CallKind::kRecordEvent), 0U);
  EXPECT_EQ(active(), 0);
}

TEST_F(AllocatorWaits, OtherPointersAreSaidToBeNone) {
  int on_the_stack = 0;
  EXPECT_FALSE(allocator_.record_stream(&on_the_stack, user_));
  EXPECT_FALSE(allocator_.record_stream(nullptr, user_));
  std::byte* data = allocate(4096);
  allocator_.free(data);
  EXPECT_FALSE(allocator_.record_stream(data, user_));
  EXPECT_ERROR(static_cast<void>(allocator_.record_stream(data, {5, nullptr})), kBadArgument);
}

// It means another stream in every thread, so neither its order nor its end can be relied on.
TEST_F(AllocatorWaits, ThePerThreadStreamIsRefused) {
  const StreamRef per_thread{0, reinterpret_cast<StreamHandle>(2)};
  std::byte* data = allocate(4096);
  EXPECT_ERROR(static_cast<void>(allocator_.record_stream(data, per_thread)), kBadArgument);
  allocator_.free(data);
  EXPECT_EQ(active(), 0);
  EXPECT_ERROR(static_cast<void>(allocate(4096, per_thread)), kBadArgument);
}

TEST_F(AllocatorWaits, EmptyCacheWaits) {
  std::byte* data = allocate(4096);
  EXPECT_TRUE(allocator_.record_stream(data, user_));
  sim_->enqueue_kernel(user_, milliseconds(50), nullptr, 0, 0);
  allocator_.free(data);
  allocator_.empty_cache();
  EXPECT_EQ(reserved(), 0);
  EXPECT_EQ(allocator_.stats(0).num_sync_all_streams, 1);
}

TEST_F(AllocatorWaits, EventsAreUsedAgain) {
  for (int count = 0; count < 50; ++count) {
    std::byte* data = allocate(4096);
    EXPECT_TRUE(allocator_.record_stream(data, user_));
    allocator_.free(data);
    sim_->wait_until_idle();
  }
  EXPECT_LE(sim_->calls(CallKind::kCreateEvent), 2U);
}

TEST_F(AllocatorWaits, ACapturingStreamIsAskedLater) {
  std::byte* data = allocate(4096);
  EXPECT_TRUE(allocator_.record_stream(data, user_));
  sim_->begin_capture(user_, SimCaptureMode::kGlobal);
  allocator_.free(data);
  EXPECT_EQ(sim_->calls(CallKind::kRecordEvent), 0U);
  std::byte* other = allocate(4096);
  EXPECT_NE(other, data);
  allocator_.empty_cache();  // does not wait for the capture
  EXPECT_EQ(active(), 2 * 4096);
  const std::unique_ptr<SimGraph> graph = sim_->end_capture(user_);  // still valid
  EXPECT_NE(graph, nullptr);
  allocator_.empty_cache();
  EXPECT_EQ(active(), 4096);
  allocator_.free(other);
}

TEST_F(AllocatorWaits, AnEventThatTheDriverRefusesIsTriedAgain) {
  for (const char* plan : {"create_event:1=fail", "record_event:1=fail"}) {
    std::byte* data = allocate(3 * kMiB);
    EXPECT_TRUE(allocator_.record_stream(data, user_));
    sim_->faults().add(plan);
    allocator_.free(data);  // accepted
    EXPECT_EQ(allocated(), 0) << plan;
    EXPECT_EQ(active(), static_cast<std::int64_t>(3 * kMiB)) << plan;
    allocator_.check_invariants();
    allocator_.empty_cache();
    EXPECT_EQ(active(), 0) << plan;
    sim_->faults().clear();
  }
}

TEST_F(AllocatorWaits, AFailingQueryIsReportedAndLosesNothing) {
  std::byte* data = allocate(4096);
  EXPECT_TRUE(allocator_.record_stream(data, user_));
  allocator_.free(data);
  sim_->faults().add("query_event:1=fail");
  EXPECT_ERROR(allocator_.empty_cache(), kDeviceError);
  allocator_.check_invariants();
  EXPECT_EQ(active(), 4096);
  allocator_.empty_cache();
  EXPECT_EQ(active(), 0);
}

// Another thread goes on freeing while this one waits.
class AllocatorWaitsBesideOthers : public AllocatorWaits {
 protected:
  [[nodiscard]] std::byte* allocated_and_used_on(StreamRef user) {
    std::byte* data = allocate(4096);
    EXPECT_TRUE(allocator_.record_stream(data, user));
    return data;
  }
  // Empties the cache in another thread; comes back when that one waits.
  [[nodiscard]] std::future<void> begin_to_empty() {
    auto done = std::async(std::launch::async, [this] { allocator_.empty_cache(); });
    EXPECT_TRUE(eventually([this] { return allocator_.stats(0).num_sync_all_streams == 1; }));
    return done;
  }
  [[nodiscard]] static bool ends(const std::future<void>& done, milliseconds within) {
    return done.wait_for(within) == std::future_status::ready;
  }
};

TEST_F(AllocatorWaitsBesideOthers, WhatIsFreedMeanwhileIsNotWaitedFor) {
  const StreamRef later_user = stream();
  std::byte* later = allocated_and_used_on(later_user);
  const SimHold hold = sim_->hold_stream(user_);
  const SimHold later_hold = sim_->hold_stream(later_user);
  allocator_.free(allocated_and_used_on(user_));
  std::future<void> done = begin_to_empty();
  allocator_.free(later);
  sim_->release_hold(hold);
  EXPECT_TRUE(ends(done, milliseconds(20'000)));
  EXPECT_EQ(active(), 4096);
  sim_->release_hold(later_hold);
}

TEST_F(AllocatorWaitsBesideOthers, AnEventThatAnotherThreadAsksIsWaitedFor) {
  std::byte* data = allocated_and_used_on(user_);
  allocator_.free(data);
  sim_->wait_until_idle();
  sim_->faults().add("query_event:1=hang");
  std::byte* other = nullptr;
  std::thread asking([&] { other = allocate(4096); });
  EXPECT_TRUE(sim_->faults().wait_for_hanging(1, milliseconds(20'000)));
  std::future<void> done = begin_to_empty();
  EXPECT_FALSE(ends(done, milliseconds(100)));
  sim_->faults().release_hangs();
  asking.join();
  done.get();
  EXPECT_EQ(active(), 4096);
  allocator_.free(other);
}

TEST_F(AllocatorWaitsBesideOthers, AnEventThatAnotherThreadRecordsIsWaitedFor) {
  for (const bool in_free : {false, true}) {
    std::byte* data = allocated_and_used_on(user_);
    std::byte* other = nullptr;
    if (!in_free) {
      sim_->faults().add("record_event:1=fail");
      allocator_.free(data);
    }
    sim_->faults().add("record_event:1=hang");
    std::thread recording([&] {
      if (in_free) return allocator_.free(data);
      other = allocate(4096);
    });
    EXPECT_TRUE(sim_->faults().wait_for_hanging(1, milliseconds(20'000)));
    allocator_.reset_peak_stats(0);
    allocator_.reset_accumulated_stats(0);
    std::future<void> done = begin_to_empty();
    EXPECT_FALSE(ends(done, milliseconds(100))) << in_free;
    sim_->faults().release_hangs();
    recording.join();
    done.get();
    if (other != nullptr) allocator_.free(other);
    EXPECT_EQ(active(), 0);
  }
}

// As at the end of a process, when the driver has been torn down.
TEST_F(AllocatorWaits, WhereEveryCallFailsFreesAreStillAccepted) {
  void* plain = allocate(4096);
  void* used = allocate(4096);
  EXPECT_TRUE(allocator_.record_stream(used, user_));
  const BlockView pinned = allocator_.pin(plain);
  for (const CallKind kind :
       {CallKind::kAllocate, CallKind::kFree, CallKind::kMemoryInfo, CallKind::kIsCapturing,
        CallKind::kCreateEvent, CallKind::kRecordEvent, CallKind::kQueryEvent}) {
    sim_->faults().add({.kind = kind, .nth = 0});
  }
  allocator_.free(used);
  allocator_.free(plain);
  EXPECT_EQ(drain_let_go(allocator_), 1);
  allocator_.unpin(pinned.block);
  EXPECT_EQ(allocate(0), nullptr);
  void* cached = allocate(4096);  // free memory is still handed out
  EXPECT_EQ(cached, plain);
  allocator_.free(cached);
  EXPECT_ERROR(static_cast<void>(allocate(64 * kMiB)), kDeviceError);
  sim_->faults().clear();
  allocator_.check_invariants();
}

}  // namespace
}  // namespace limbo::testing
