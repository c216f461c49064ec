// Trackers of the history: what they hear, when, and what they may do.
#include <algorithm>
#include <map>
#include <thread>
#include <utility>

#include "tests/unit/allocator_history_support.h"

namespace limbo::testing {
namespace {

using AllocatorTrackers = AllocatorHistory;

TEST_F(AllocatorTrackers, ATrackerHearsEverythingWithoutARecording) {
  listen();
  allocator_.add_trace_tracker([this](const TraceEntry&) {
    static_cast<void>(allocator_.stats(0));  // would deadlock under a lock
  });
  for (int round = 0; round < 2; ++round) allocator_.free(allocate(600));
  allocator_.empty_cache();
  EXPECT_EQ(actions_of(heard_),
            (std::vector<Action>{Action::kSegmentAlloc, Action::kAlloc, Action::kFreeRequested,
                                 Action::kFreeCompleted, Action::kAlloc, Action::kFreeRequested,
                                 Action::kFreeCompleted, Action::kSegmentFree}));
  EXPECT_TRUE(trace().empty());
  EXPECT_EQ(heard_.back().action, Action::kSnapshot);
  heard_.clear();
  settings_.skipped.set();  // what is not kept is told all the same
  record(ContextLevel::kAlloc);
  allocator_.free(allocate(600));
  EXPECT_EQ(heard_.size(), 4U);
  EXPECT_EQ(number_of(heard_.at(1).context), 1);
  EXPECT_TRUE(trace().empty());
  heard_.clear();
}

TEST_F(AllocatorTrackers, ATrackerKnowsASegmentWhileTheDriverHasIt) {
  allocator_.add_trace_tracker([this](const TraceEntry& entry) {
    if (entry.action != Action::kSegmentAlloc && entry.action != Action::kSegmentFree) return;
    const bool given_out = allocator_.find(std::bit_cast<void*>(entry.address)).has_value();
    seen_.push_back(std::string(entry.action == Action::kSegmentAlloc ? "made" : "gone") +
                    (given_out ? ", given out" : "") + ", driver has " +
                    std::to_string(sim_->balance().allocated));
  });
  allocator_.free(allocate(30 * kMiB));
  allocator_.empty_cache();
  EXPECT_EQ(seen_, (std::vector<std::string>{"made, driver has 1", "gone, driver has 1"}));
}

// Whoever learns of a pool's segments by a snapshot and from then on by a tracker misses none, and
// has none that is gone.
TEST_F(AllocatorTrackers, SnapshotsHaveTheSegmentsThatTrackersKnow) {
  allocator_.add_trace_tracker([this](const TraceEntry& entry) {
    if (entry.action != Action::kSegmentAlloc && entry.action != Action::kSegmentFree) return;
    if (std::exchange(once_, false)) return;
    const std::size_t count = allocator_.snapshot().size();
    EXPECT_EQ(reserved(), static_cast<std::int64_t>(count * 2 * kMiB));
    seen_.push_back((entry.action == Action::kSegmentAlloc ? "made: " : "gone: ") +
                    std::to_string(count));
  });
  std::byte* first = allocate(kMiB);
  std::byte* second = allocate(kMiB + kMiB / 2 - 512 * 1024);
  std::byte* third = allocate(kMiB);
  EXPECT_EQ(seen_, std::vector<std::string>{"made: 2"});
  allocator_.free(third);
  sim_->faults().add("free:1=hang");
  std::thread returns([&] { allocator_.empty_cache(); });
  ASSERT_TRUE(sim_->faults().wait_for_hanging(1, kPatience));
  EXPECT_EQ(allocator_.snapshot().size(), 1U);
  EXPECT_EQ(reserved(), static_cast<std::int64_t>(2 * kMiB));
  allocator_.check_invariants();
  sim_->faults().release_hangs();
  returns.join();
  EXPECT_EQ(seen_, (std::vector<std::string>{"made: 2", "gone: 1"}));
  allocator_.free(first);
  allocator_.free(second);
}

// It is nobody's, and lookups find that out at the segment itself.
TEST_F(AllocatorTrackers, TheAddressesOfASegmentThatComesAreItsOwn) {
  std::byte* neighbour = allocate(kMiB);
  allocator_.add_trace_tracker([this](const TraceEntry& entry) {
    if (entry.action != Action::kSegmentAlloc) return;
    seen_.emplace_back();
    allocator_.check_invariants();
    auto* base = std::bit_cast<std::byte*>(entry.address);
    for (std::byte* data : {base, base + 1, base + entry.size_bytes - 1}) {
      EXPECT_FALSE(allocator_.find(data));
      EXPECT_FALSE(allocator_.record_stream(data, home_));
      EXPECT_ERROR(static_cast<void>(allocator_.pin(data)), kNotLendable);
      EXPECT_ERROR(allocator_.free(data), kDoubleFree);  // as all that is free
    }
  });
  for (const std::size_t size_bytes : {kMiB + kMiB / 2, 30 * kMiB}) {
    allocator_.free(allocate(size_bytes));
  }
  EXPECT_EQ(seen_.size(), 2U);
  allocator_.free(neighbour);
}

// Also where the driver does not take it: it is in snapshots when it is told of again.
TEST_F(AllocatorTrackers, SnapshotsHaveASegmentAgainThatTheDriverDoesNotTake) {
  allocator_.add_trace_tracker([this](const TraceEntry& entry) {
    if (entry.action != Action::kSegmentAlloc && entry.action != Action::kSegmentFree) return;
    seen_.push_back((entry.action == Action::kSegmentAlloc ? "made: " : "gone: ") +
                    std::to_string(allocator_.snapshot().size()));
  });
  listen_and_refuse(Action::kSegmentFree);
  allocator_.free(allocate(600));
  EXPECT_ERROR(allocator_.empty_cache(), kInternal);
  refuse_ = false;
  sim_->faults().add("free:1=fail");
  EXPECT_ERROR(allocator_.empty_cache(), kDeviceError);
  EXPECT_EQ(seen_,
            (std::vector<std::string>{"made: 1", "gone: 0", "made: 1", "gone: 0", "made: 1"}));
  EXPECT_EQ(allocator_.snapshot().size(), 1U);
}

TEST_F(AllocatorTrackers, ATrackerThatRefusesASegmentFailsTheAllocation) {
  listen_and_refuse(Action::kSegmentAlloc);
  EXPECT_ERROR(static_cast<void>(allocate(600)), kInternal);
  EXPECT_EQ(actions_of(heard_), (std::vector<Action>{Action::kSegmentAlloc, Action::kSegmentFree}));
  EXPECT_EQ(reserved(), 0);
  EXPECT_EQ(sim_->balance().allocated, 0U);
  refuse_ = false;
  allocator_.free(allocate(600));
}

// Refused on both sides, the memory is there and free, and trackers know that.
TEST_F(AllocatorTrackers, ARefusedSegmentThatTheDriverDoesNotTakeBackStays) {
  listen();
  record();
  allocator_.add_trace_tracker([this](const TraceEntry& entry) {
    if (entry.action == Action::kSegmentAlloc && std::exchange(once_, false)) {
      throw Error(ErrorCode::kInternal, "refused");
    }
  });
  sim_->faults().add("free:1=fail");
  EXPECT_ERROR(static_cast<void>(allocate(600)), kInternal);
  const std::vector<Action> expected{Action::kSegmentAlloc, Action::kSegmentFree,
                                     Action::kSegmentAlloc};
  EXPECT_EQ(actions_of(heard_), expected);
  EXPECT_EQ(actions(), expected);
  EXPECT_EQ(allocator_.snapshot().size(), 1U);
  EXPECT_EQ(reserved(), static_cast<std::int64_t>(2 * kMiB));
  allocator_.check_invariants();
  sim_->reset_calls();
  allocator_.free(allocate(600));
  EXPECT_EQ(sim_->calls(CallKind::kAllocate), 0U);
}

TEST_F(AllocatorTrackers, ATrackerThatRefusesAReturnKeepsTheSegment) {
  listen_and_refuse(Action::kSegmentFree);
  allocator_.free(allocate(600));
  heard_.clear();
  EXPECT_ERROR(allocator_.empty_cache(), kInternal);
  EXPECT_EQ(actions_of(heard_), (std::vector<Action>{Action::kSegmentFree, Action::kSegmentAlloc}));
  EXPECT_EQ(reserved(), static_cast<std::int64_t>(2 * kMiB));
  allocator_.check_invariants();
  refuse_ = false;
}

TEST_F(AllocatorTrackers, ASegmentThatTheDriverDoesNotTakeBackIsKnownAgain) {
  listen();
  record();
  allocator_.free(allocate(600));
  heard_.clear();
  sim_->faults().add("free:1=fail");
  EXPECT_ERROR(allocator_.empty_cache(), kDeviceError);
  EXPECT_EQ(actions_of(heard_), (std::vector<Action>{Action::kSegmentFree, Action::kSegmentAlloc}));
  const std::vector<Action> kept = actions();
  ASSERT_EQ(kept.size(), 6U);
  EXPECT_EQ(kept[4], Action::kSegmentFree);
  EXPECT_EQ(kept[5], Action::kSegmentAlloc);
}

TEST_F(AllocatorTrackers, WhatATrackerThrowsOtherwiseIsDropped) {
  listen_and_refuse(Action::kAlloc);
  std::byte* data = allocate(600);
  EXPECT_EQ(allocated(), 1024);
  allocator_.free(data);
  EXPECT_EQ(heard_.size(), 4U);
}

TEST_F(AllocatorTrackers, ATrackerMayAllocate) {
  listen();
  allocator_.add_trace_tracker([this](const TraceEntry&) {
    if (std::exchange(once_, false)) allocator_.free(allocate(512));
  });
  allocator_.free(allocate(3 * kMiB));
  const std::vector<Action> actions = actions_of(heard_);
  EXPECT_EQ(std::count(actions.begin(), actions.end(), Action::kAlloc), 2);
  EXPECT_EQ(std::count(actions.begin(), actions.end(), Action::kFreeCompleted), 2);
  EXPECT_EQ(std::count(actions.begin(), actions.end(), Action::kSegmentAlloc), 2);
}

// Every entry must be the next step of its block; how many there are.
std::size_t follow_blocks(const std::vector<TraceEntry>& entries) {
  std::map<std::uintptr_t, TraceAction> last;
  std::size_t count = 0;
  for (const TraceEntry& entry : entries) {
    if (entry.action > TraceAction::kFreeCompleted) continue;
    ++count;
    TraceAction& at = last.try_emplace(entry.address, TraceAction::kFreeCompleted).first->second;
    const TraceAction expected = at == TraceAction::kFreeCompleted ? TraceAction::kAlloc
                                 : at == TraceAction::kAlloc       ? TraceAction::kFreeRequested
                                                                   : TraceAction::kFreeCompleted;
    EXPECT_EQ(entry.action, expected);
    at = entry.action;
  }
  return count;
}

TEST_F(AllocatorTrackers, WithManyThreadsEveryEntryIsTheNextStepOfItsBlock) {
  constexpr int kThreads = 4;
  constexpr int kRounds = 500;
  allocator_.add_trace_tracker([this](const TraceEntry& entry) {
    EXPECT_EQ(++inside_, 1);  // one thread at a time calls it
    heard_.push_back(entry);
    --inside_;
  });
  record(ContextLevel::kAll, 1'000'000);
  std::vector<std::thread> threads;
  for (int index = 0; index < kThreads; ++index) {
    threads.emplace_back([&, index] {
      for (int round = 0; round < kRounds; ++round) {
        allocator_.free(allocate(512 * static_cast<std::size_t>(1 + (round + index) % 3)));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(follow_blocks(trace()), static_cast<std::size_t>(kThreads * kRounds * 3));
  EXPECT_EQ(follow_blocks(heard_), static_cast<std::size_t>(kThreads * kRounds * 3));
  heard_.clear();
}

}  // namespace
}  // namespace limbo::testing
