// Trackers where several threads want to call them: one at a time, in order, and nobody for ever.
#include <chrono>
#include <map>
#include <memory>
#include <thread>
#include <utility>

#include "allocator/trace.h"
#include "tests/unit/allocator_history_support.h"
#include "tests/unit/worker.h"

namespace limbo::testing {
namespace {

// How long is looked for something that must not happen.
constexpr std::chrono::milliseconds kLook{100};

class AllocatorTrackerTurns : public AllocatorHistory {
 protected:
  AllocatorTrackerTurns() : AllocatorHistory(64) {}

  // The tracker's first call of this kind is held until `held` says that it is over.
  void hold_first(Action action, std::function<void()> held) {
    allocator_.add_trace_tracker([this, action, held = std::move(held)](const TraceEntry& entry) {
      if (entry.action != action || std::exchange(held_, true)) return;
      in_tracker_ = true;
      held();
      in_tracker_ = false;
    });
  }

  bool held_ = false;  // only trackers use it
  std::atomic<bool> in_tracker_{false};
  std::atomic<bool> done_{false};
  std::atomic<int> pairs_{0};
  FakeLender lender_;
};

TEST_F(AllocatorTrackerTurns, ASlowTrackerHoldsTheOthersBackAtTheBound) {
  constexpr int kAllPairs = 5000;
  hold_first(Action::kAlloc,
             [&] { static_cast<void>(eventually([&] { return done_.load(); }, kLook)); });
  std::thread slow([&] { allocator_.free(allocate(512)); });
  ASSERT_TRUE(eventually([&] { return in_tracker_.load(); }));
  for (; pairs_ < kAllPairs && in_tracker_; ++pairs_) allocator_.free(allocate(512));
  done_ = true;
  slow.join();
  // Each left two entries or three with the other thread.
  EXPECT_GT(pairs_, static_cast<int>(Trace::kMaxUntold / 3) - 1);
  EXPECT_LE(pairs_, static_cast<int>(Trace::kMaxUntold / 3) + 1);
}

TEST_F(AllocatorTrackerTurns, NobodyTellsForEver) {
  constexpr int kAllPairs = 20000;
  listen();
  hold_first(Action::kAlloc, [&] { EXPECT_TRUE(eventually([&] { return pairs_ > 10; })); });
  allocator_.add_trace_tracker(
      [](const TraceEntry&) { std::this_thread::sleep_for(std::chrono::microseconds(1)); });
  std::thread slow([&] {
    allocator_.free(allocate(1024));
    done_ = true;
  });
  ASSERT_TRUE(eventually([&] { return in_tracker_.load(); }));
  // Faster than they can be told.
  for (; pairs_ < kAllPairs && !done_; ++pairs_) allocator_.free(allocate(512));
  EXPECT_LT(pairs_, kAllPairs);
  slow.join();
  // And nothing is left untold.
  EXPECT_EQ(heard_.size(), 3 * static_cast<std::size_t>(pairs_ + 1) + 1);
}

TEST_F(AllocatorTrackerTurns, ASegmentsEndIsToldBehindTheFreesOfItsBlocks) {
  listen();
  std::byte* of_first = allocate(2048);
  std::byte* data = allocate(3 * kMiB);
  hold_first(Action::kFreeRequested,
             [&] { static_cast<void>(eventually([&] { return done_.load(); }, kLook)); });
  std::thread slow([&] { allocator_.free(of_first); });
  ASSERT_TRUE(eventually([&] { return in_tracker_.load(); }));
  allocator_.free(data);  // its entries are left to the other thread
  allocator_.empty_cache();
  done_ = true;
  slow.join();
  std::map<std::uintptr_t, Action> last;
  for (const TraceEntry& entry : heard_) {
    if (entry.action == Action::kSegmentFree) {
      EXPECT_EQ(last.at(entry.address), Action::kFreeCompleted);
    }
    last[entry.address] = entry.action;
  }
  EXPECT_EQ(last.at(address_of(data)), Action::kSegmentFree);
}

TEST_F(AllocatorTrackerTurns, OneThreadAtATimeAlsoForSegments) {
  constexpr int kThreads = 4;
  constexpr int kRounds = 100;
  std::atomic<int> segments{0};
  allocator_.add_trace_tracker([&](const TraceEntry& entry) {
    EXPECT_EQ(++inside_, 1);
    if (entry.action == Action::kSegmentAlloc) ++segments;
    if (entry.action == Action::kSegmentFree) --segments;
    std::this_thread::yield();
    --inside_;
  });
  std::vector<std::thread> threads;
  for (int index = 0; index < kThreads; ++index) {
    threads.emplace_back([&, index] {
      for (int round = 0; round < kRounds; ++round) {
        std::byte* small = allocate(512);
        allocator_.free(allocate(static_cast<std::size_t>(1 + index) * kMiB + 512));
        if (round % 4 == index) allocator_.empty_cache();
        allocator_.free(small);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  allocator_.empty_cache();
  EXPECT_EQ(segments, 0);
}

// The thread's own work, on which its tracker is called, is nothing to wait for.
TEST_F(AllocatorTrackerTurns, OutOfRoomInsideATrackerIsReportedAtOnce) {
  allocator_.set_lender(&lender_);
  hold_first(Action::kSegmentAlloc, [&] {
    seen_.push_back(out_of_memory([&] { static_cast<void>(allocate(65 * kMiB)); }));
  });
  std::byte* data = allocate(512);
  ASSERT_EQ(seen_.size(), 1U);
  EXPECT_EQ(lender_.thorough_collects, 1);
  allocator_.free(data);
  allocator_.empty_cache();
}

// Nor is a thread that waits until it may call the trackers.
TEST_F(AllocatorTrackerTurns, OutOfRoomInsideATrackerDoesNotWaitForWhoWaitsForIt) {
  allocator_.set_lender(&lender_);
  hold_first(Action::kAlloc, [&] {
    EXPECT_TRUE(eventually([&] { return sim_->balance().allocated == 2; }));
    seen_.push_back(out_of_memory([&] { static_cast<void>(allocate(65 * kMiB)); }));
  });
  std::thread waits([&] {
    ASSERT_TRUE(eventually([&] { return in_tracker_.load(); }));
    allocator_.free(allocate(3 * kMiB));
  });
  std::byte* data = allocate(512);
  waits.join();
  ASSERT_EQ(seen_.size(), 1U);
  EXPECT_LE(lender_.thorough_collects, 2);
  allocator_.free(data);
  allocator_.empty_cache();
}

}  // namespace
}  // namespace limbo::testing
