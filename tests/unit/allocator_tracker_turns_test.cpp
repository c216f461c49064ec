// Trackers where several threads want to call them: one at a time, in order, and nobody for ever.
#include <algorithm>
#include <chrono>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>

#include "allocator/provider_foreign.h"
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

  // The calling thread's pairs leave so many entries, each three, as one may before it waits.
  void leave_entries() {
    for (std::size_t left = 3; left < Trace::kMaxUntold; left += 3) allocator_.free(allocate(512));
  }

  // A tracker finds no room while another thread's pool gets memory from a maker that does `first`.
  void run_out_of_room_beside(std::function<void()> first) {
    constexpr PoolId kPool{3, 0};
    allocator_.set_lender(&lender_);
    allocator_.retain_pool(0, kPool,
                           std::make_shared<ProviderForeign>(
                               [this, first = std::move(first)](int, std::size_t size_bytes) {
                                 first();
                                 return sim_->try_allocate(0, size_bytes);
                               },
                               [this](int, void* memory) { sim_->free(0, memory); }));
    hold_first(Action::kAlloc, [this] {
      EXPECT_TRUE(eventually([&] { return maker_is_here_.load(); }));
      seen_.push_back(out_of_memory([&] { static_cast<void>(allocate(65 * kMiB)); }));
    });
    std::thread waits([&] {
      ASSERT_TRUE(eventually([&] { return in_tracker_.load(); }));
      const std::thread::id self = std::this_thread::get_id();
      allocator_.begin_allocate_to_pool(
          0, kPool, [self](StreamHandle) { return std::this_thread::get_id() == self; },
          home_.handle);
      allocator_.free(allocate(512));
      allocator_.end_allocate_to_pool(0, kPool);
      allocator_.release_pool(0, kPool);
      allocator_.release_pool(0, kPool);
    });
    std::byte* data = allocate(512);
    waits.join();
    EXPECT_EQ(seen_.size(), 1U);
    allocator_.free(data);
    allocator_.empty_cache();
  }

  bool held_ = false;  // only trackers use it
  std::atomic<bool> in_tracker_{false};
  std::atomic<bool> maker_is_here_{false};
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

// Nor is any work of a thread that waits so: the maker of a pool is in the midst of one, and what it
// allocates here may be another.
TEST_F(AllocatorTrackerTurns, NorForAPoolsMakerThatWaitsWithASegment) {
  run_out_of_room_beside([&] {
    maker_is_here_ = true;
    allocator_.free(allocate(3 * kMiB));
  });
  EXPECT_LE(lender_.thorough_collects, 2);
}

TEST_F(AllocatorTrackerTurns, NorForAPoolsMakerThatWaitsAtTheBound) {
  run_out_of_room_beside([&] {
    leave_entries();
    maker_is_here_ = true;
    allocator_.free(allocate(512));
  });
  EXPECT_LE(lender_.thorough_collects, 2);
}

// Limbo's own threads unpin, and a call that must not block.
TEST_F(AllocatorTrackerTurns, WhoUnpinsDoesNotWaitForASlowTracker) {
  const BlockView lent = allocator_.pin(allocate(512));
  allocator_.free(lent.data);
  EXPECT_EQ(drain_let_go(allocator_), 1);
  hold_first(Action::kAlloc, [&] { EXPECT_TRUE(eventually([&] { return done_.load(); })); });
  listen();
  std::thread slow([&] { allocator_.free(allocate(512)); });
  ASSERT_TRUE(eventually([&] { return in_tracker_.load(); }));
  leave_entries();
  std::thread([&] { allocator_.unpin(lent.block); }).join();
  EXPECT_TRUE(in_tracker_);
  done_ = true;
  slow.join();
  const auto is_of_lent = [&](const TraceEntry& entry) {
    return entry.address == address_of(lent.data) && entry.action == Action::kFreeCompleted;
  };
  EXPECT_EQ(std::count_if(heard_.begin(), heard_.end(), is_of_lent), 1);  // it is told all the same
}

// Stands for Python's lock: whoever gathers wants it, and whoever calls the allocator may hold it.
std::recursive_mutex gatherers_lock;
std::atomic<bool> gatherer_got_it{true};

CallContext gather_under_lock() {
  std::unique_lock lock(gatherers_lock, std::defer_lock);
  if (!eventually([&] { return lock.try_lock(); }, kPatience / 10)) gatherer_got_it = false;
  return gather_number();
}

TEST_F(AllocatorTrackerTurns, ATrackersOwnCallsGatherNoContext) {
  record(ContextLevel::kAll);
  allocator_.free(allocate(512));
  allocator_.free(allocate(3 * kMiB));
  settings_.gather = gather_under_lock;
  allocator_.set_history(settings_);
  std::atomic<bool> locked{false};
  hold_first(Action::kAlloc, [&] {
    EXPECT_TRUE(eventually([&] { return locked.load(); }));
    allocator_.free(allocate(1024));
  });
  std::thread slow([&] { allocator_.free(allocate(512)); });
  ASSERT_TRUE(eventually([&] { return in_tracker_.load(); }));
  {
    const std::lock_guard lock(gatherers_lock);
    locked = true;
    allocator_.empty_cache();  // waits for the tracker
  }
  slow.join();
  EXPECT_TRUE(gatherer_got_it);
}

}  // namespace
}  // namespace limbo::testing
