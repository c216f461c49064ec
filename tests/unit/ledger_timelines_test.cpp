#include <gtest/gtest.h>
#include <sys/mman.h>

#include <chrono>
#include <memory>
#include <thread>
#include <vector>

#include "ipc/lease_timelines.h"
#include "ipc/timelines.h"
#include "sim_support.h"
#include "tests/support/balance.h"
#include "tests/support/eventually.h"
#include "tests/unit/short_host_memory.h"

namespace limbo {
namespace {

class LedgerTimelines : public testing::BalancedTest {
 protected:
  void warm_up() override {
    const StreamRef first = {0, sim().create_stream(0)};
    sim().synchronize_stream(first);
    sim().destroy_stream(first);
  }

  static SimDevice& sim() {
    static SimDevice* device = testing::make_sim().release();
    return *device;
  }
  StreamRef stream() {
    made_.push_back({0, sim().create_stream(0)});
    return made_.back();
  }
  void TearDown() override {
    sim().wait_until_idle();
    for (const StreamRef made : made_) sim().destroy_stream(made);
    BalancedTest::TearDown();
  }
  static std::uint64_t value(const Timelines& timelines, const TimelinePoint& point) {
    return timelines.value(point.index).load(std::memory_order_acquire);
  }

 private:
  std::vector<StreamRef> made_;
};

TEST_F(LedgerTimelines, NumbersLandBehindTheStreamsWork) {
  Timelines timelines(sim(), 8);
  const StreamRef a = stream();
  const SimHold hold = sim().hold_stream(a);
  const TimelinePoint first = timelines.advance(a);
  const TimelinePoint second = timelines.advance(a);
  EXPECT_EQ(first.index, second.index);
  EXPECT_EQ(first.number, 1U);
  EXPECT_EQ(second.number, 2U);
  EXPECT_EQ(value(timelines, first), 0U);
  sim().release_hold(hold);
  sim().synchronize_stream(a);
  EXPECT_EQ(value(timelines, first), 2U);
}

// Behind held streams no number lands. What a failed call had made is the second stream's, and the
// first keeps its own.
TEST_F(LedgerTimelines, HostMemoryThatRunsOutTakesNoTimelineAway) {
  testing::RobustDevice device(sim());
  const StreamRef first = stream();
  const StreamRef second = stream();
  Timelines timelines(device, 2);
  const SimHold holds[] = {sim().hold_stream(first), sim().hold_stream(second)};
  TimelinePoint point;
  testing::with_ever_more_memory([&] { point = timelines.advance(first); });
  (void)timelines.advance(second);
  EXPECT_NO_THROW(EXPECT_EQ(timelines.advance(first).index, point.index));
  for (const SimHold hold : holds) sim().release_hold(hold);
  sim().wait_until_idle();
}

TEST_F(LedgerTimelines, StreamsHaveTimelinesOfTheirOwn) {
  Timelines timelines(sim(), 8);
  const StreamRef a = stream();
  const StreamRef b = stream();
  const SimHold hold = sim().hold_stream(a);
  const TimelinePoint held = timelines.advance(a);
  const TimelinePoint free = timelines.advance(b);
  EXPECT_NE(held.index, free.index);
  sim().synchronize_stream(b);
  EXPECT_EQ(value(timelines, free), 1U);
  EXPECT_EQ(value(timelines, held), 0U);
  // and one waits for the other
  timelines.wait(b, held);
  const TimelinePoint behind = timelines.advance(b);
  sim().release_hold(hold);
  sim().synchronize_stream(b);
  EXPECT_EQ(value(timelines, behind), 2U);
  EXPECT_EQ(value(timelines, held), 1U);
}

// Trace 13: a timeline is given to another stream only after its last number has landed.
TEST_F(LedgerTimelines, FullTableReusesWhatHasLanded) {
  Timelines timelines(sim(), 2);
  const StreamRef a = stream();
  const StreamRef b = stream();
  const StreamRef c = stream();
  const SimHold hold_a = sim().hold_stream(a);
  const SimHold hold_b = sim().hold_stream(b);
  const TimelinePoint of_a = timelines.advance(a);
  const TimelinePoint of_b = timelines.advance(b);
  try {
    (void)timelines.advance(c);
    ADD_FAILURE() << "a third timeline out of two";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kLedgerFull);
    EXPECT_TRUE(testing::contains(error.what(), "ledger_timelines"));
  }
  sim().release_hold(hold_b);
  sim().synchronize_stream(b);
  const TimelinePoint of_c = timelines.advance(c);
  EXPECT_EQ(of_c.index, of_b.index);
  EXPECT_GT(of_c.number, of_b.number);
  sim().release_hold(hold_a);
  sim().synchronize_stream(a);
  sim().synchronize_stream(c);
  // b gets one again, and a's number stands
  const TimelinePoint again = timelines.advance(b);
  EXPECT_NE(again, of_b);
  sim().synchronize_stream(b);
  EXPECT_EQ(value(timelines, again), again.number);
  EXPECT_GE(value(timelines, of_a), of_a.number);
}

// Trace 13: taken and enqueued under one lock, so that on one word no number lands behind a higher.
TEST_F(LedgerTimelines, ManySendersOnOneStreamLandInOrder) {
  Timelines timelines(sim(), 8);
  const StreamRef a = stream();
  const std::uint32_t index = timelines.advance(a).index;
  std::atomic<bool> done{false};
  std::thread watcher([&] {
    std::uint64_t last = 0;
    while (!done.load()) {
      const std::uint64_t now = timelines.value(index).load(std::memory_order_acquire);
      EXPECT_GE(now, last);
      last = now;
    }
  });
  std::vector<std::thread> senders;
  for (int t = 0; t < 3; ++t) {
    senders.emplace_back([&] {
      for (int i = 0; i < 100; ++i) (void)timelines.advance(a);
    });
  }
  for (std::thread& sender : senders) sender.join();
  sim().synchronize_stream(a);
  done = true;
  watcher.join();
  EXPECT_EQ(timelines.value(index).load(), 301U);
}

TEST_F(LedgerTimelines, EndedTimelinesLetEveryWaitPass) {
  Timelines timelines(sim(), 4);
  const StreamRef a = stream();
  const StreamRef b = stream();
  const SimHold hold = sim().hold_stream(a);
  timelines.wait(b, timelines.advance(a));
  const EventHandle event = sim().create_event(0);
  sim().record_event(b, event);
  EXPECT_FALSE(sim().query_event(0, event));
  timelines.end_all();
  EXPECT_TRUE(testing::eventually([&] { return sim().query_event(0, event); }));
  sim().destroy_event(0, event);
  sim().release_hold(hold);
}

TEST_F(LedgerTimelines, ForeignPointsAreRefused) {
  Timelines timelines(sim(), 4);
  EXPECT_NO_THROW(timelines.wait(stream(), {}));
  EXPECT_THROW(timelines.wait(stream(), {.owner = 0, .index = 4, .number = 1}), Error);
  EXPECT_THROW(timelines.wait(stream(), {.owner = 1, .index = 0, .number = 1}), Error);
}

TEST_F(LedgerTimelines, RefusedWriteUsesUpItsNumber) {
  Timelines timelines(sim(), 4);
  const StreamRef a = stream();
  (void)timelines.advance(a);
  sim().faults().add("write_words:1=fail");
  EXPECT_DEVICE_ERROR((void)timelines.advance(a), "");
  sim().faults().clear();
  const TimelinePoint next = timelines.advance(a);
  EXPECT_EQ(next.number, 3U);
  sim().synchronize_stream(a);
  EXPECT_EQ(value(timelines, next), 3U);
}

// What had landed by then was written; what lands later comes too late for those who were let pass.
TEST_F(LedgerTimelines, TheEndTellsWhatWasReachedFromWhatWasNot) {
  Timelines timelines(sim(), 4);
  const StreamRef a = stream();
  const StreamRef unused = stream();
  const TimelinePoint landed = timelines.advance(a);
  sim().synchronize_stream(a);
  const SimHold hold = sim().hold_stream(a);
  const TimelinePoint late = timelines.advance(a);
  for (const TimelinePoint& point : {landed, late})
    EXPECT_FALSE(timelines.arrival(point) == protocol::Arrival::kLost);
  timelines.end_all();
  EXPECT_FALSE(timelines.arrival(landed) == protocol::Arrival::kLost);
  EXPECT_TRUE(timelines.arrival(late) == protocol::Arrival::kLost);
  EXPECT_TRUE(timelines.all_reached());
  timelines.wait(unused, late);
  sim().synchronize_stream(unused);
  sim().release_hold(hold);
  sim().synchronize_stream(a);
  EXPECT_EQ(value(timelines, late), late.number);  // a late write has set it back
  timelines.end_all();
  EXPECT_TRUE(timelines.arrival(late) == protocol::Arrival::kLost);
  EXPECT_FALSE(timelines.arrival(landed) == protocol::Arrival::kLost);
  EXPECT_FALSE(timelines.arrival({}) == protocol::Arrival::kLost);
  EXPECT_EQ(value(timelines, late), protocol::kTimelineEnded);
}

// What writes it then would write into memory that the device does not know.
TEST_F(LedgerTimelines, TheDeviceForgetsThemWhenEveryNumberHasLanded) {
  auto timelines = std::make_unique<Timelines>(sim(), 4);
  const StreamRef a = stream();
  (void)timelines->advance(stream());
  const SimHold hold = sim().hold_stream(a);
  (void)timelines->advance(a);
  sim().reset_calls();
  std::thread ends([&] { timelines.reset(); });
  EXPECT_TRUE(testing::eventually([] { return sim().calls(CallKind::kSynchronize) == 1; },
                                  std::chrono::seconds(5)));
  EXPECT_EQ(sim().calls(CallKind::kUnregister), 0U);
  sim().release_hold(hold);
  ends.join();
  EXPECT_EQ(sim().calls(CallKind::kUnregister), 1U);
}

// A device that is full may let nobody wait for it, if host memory is short too.
TEST_F(LedgerTimelines, WhereTheDeviceCannotBeWaitedForTheyAreLookedAtAgain) {
  Timelines timelines(sim(), 4);
  const StreamRef a = stream();
  const SimHold hold = sim().hold_stream(a);
  (void)timelines.advance(a);
  sim().reset_calls();
  sim().faults().add("synchronize:1=fail");
  EXPECT_FALSE(timelines.settle());
  EXPECT_EQ(sim().calls(CallKind::kUnregister), 0U);
  sim().release_hold(hold);
  EXPECT_TRUE(timelines.settle());
  EXPECT_EQ(sim().calls(CallKind::kUnregister), 1U);
}

// Whoever may wait for a number may set it back.
TEST_F(LedgerTimelines, ANumberThatWasSetBackIsNotWaitedFor) {
  Timelines timelines(sim(), 4);
  const StreamRef a = stream();
  const TimelinePoint landed = timelines.advance(a);
  sim().synchronize_stream(a);
  timelines.value(landed.index).store(0);
  sim().reset_calls();
  sim().faults().add("synchronize:1=fail");
  EXPECT_FALSE(timelines.settle());
  EXPECT_TRUE(timelines.settle());
  EXPECT_EQ(sim().calls(CallKind::kSynchronize), 2U);
  EXPECT_EQ(sim().calls(CallKind::kUnregister), 1U);
}

// The write of a call that failed may come or not.
TEST_F(LedgerTimelines, WhatCannotBeSettledIsLeftToTheDevice) {
  auto timelines = std::make_unique<Timelines>(sim(), 4);
  sim().faults().add("write_words:1=fail");
  EXPECT_DEVICE_ERROR((void)timelines->advance(stream()), "");
  void* const memory = &timelines->value(0);  // at its beginning
  sim().reset_calls();
  sim().faults().add("synchronize:*=fail");
  timelines.reset();
  sim().faults().clear();
  EXPECT_EQ(sim().calls(CallKind::kSynchronize), 1U);
  EXPECT_EQ(sim().calls(CallKind::kUnregister), 0U);
  if (HasFailure()) return;
  sim().unregister_host_memory(memory);
  EXPECT_EQ(::munmap(memory, timelines_bytes({.timelines = 4})), 0);
}

// The driver still holds it: another mapping at that address could not be registered.
TEST_F(LedgerTimelines, WhatTheDeviceDoesNotForgetStaysMapped) {
  constexpr std::uint32_t kTimelines = 4;
  const std::size_t size_bytes = timelines_bytes({.timelines = kTimelines});
  const StreamRef a = stream();
  auto own = std::make_unique<Timelines>(sim(), kTimelines);
  const std::uint64_t number = own->advance(a).number;
  sim().synchronize_stream(a);
  SharedMemory theirs = SharedMemory::create("limbo-test", size_bytes, ReceiverMay::kWrite);
  static_cast<Timeline*>(theirs.data())->value.store(number);
  void* const memories[] = {&own->value(0), theirs.data()};  // at their beginnings
  auto foreign = std::make_unique<LeaseTimelines>(sim(), std::move(theirs), kTimelines);
  foreign->wait(a, 0, number);
  sim().synchronize_stream(a);
  sim().reset_calls();
  for (const char* plan : {"unregister:1=fail", "unregister:2=fail"}) sim().faults().add(plan);
  own.reset();
  foreign.reset();
  EXPECT_EQ(sim().calls(CallKind::kUnregister), 2U);
  for (void* memory : memories) {
    ASSERT_EQ(::msync(memory, size_bytes, MS_ASYNC), 0) << "it is mapped no more";
    sim().unregister_host_memory(memory);
    EXPECT_EQ(::munmap(memory, size_bytes), 0);
  }
}

TEST_F(LedgerTimelines, NobodyWaitsForTheDeviceWhereTheyHaveLanded) {
  auto timelines = std::make_unique<Timelines>(sim(), 4);
  const StreamRef a = stream();
  (void)timelines->advance(a);
  sim().synchronize_stream(a);
  sim().reset_calls();
  timelines.reset();
  EXPECT_EQ(sim().calls(CallKind::kSynchronize), 0U);
  EXPECT_EQ(sim().calls(CallKind::kUnregister), 1U);
}

}  // namespace
}  // namespace limbo
