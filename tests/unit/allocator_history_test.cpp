// The history: entries, contexts, the ring.
#include <thread>

#include "tests/unit/allocator_history_support.h"

namespace limbo::testing {
namespace {

TEST_F(AllocatorHistory, TellsWhatHappenedInOrder) {
  record();
  std::byte* data = allocate(1000);
  allocator_.free(data);
  allocator_.empty_cache();
  const std::vector<TraceEntry> entries = trace();
  ASSERT_EQ(actions_of(entries),
            (std::vector<Action>{Action::kSegmentAlloc, Action::kAlloc, Action::kFreeRequested,
                                 Action::kFreeCompleted, Action::kSegmentFree}));
  EXPECT_EQ(entries[0].size_bytes, 2 * kMiB);
  EXPECT_EQ(entries[4].size_bytes, 2 * kMiB);
  for (const std::size_t of_block : {1U, 2U, 3U}) EXPECT_EQ(entries[of_block].size_bytes, 1000U);
  for (const TraceEntry& entry : entries) {
    EXPECT_EQ(entry.address, address_of(data));
    EXPECT_EQ(entry.device, 0);
    EXPECT_EQ(entry.stream, home_.handle);
    EXPECT_TRUE(entry.pool.is_default());
    EXPECT_EQ(entry.context, nullptr);
    EXPECT_LE(entries[0].time, entry.time);
  }
}

TEST_F(AllocatorHistory, EveryCallIsSeenHoweverOftenTheSizeIsReused) {
  std::byte* data = allocate(4096);
  allocator_.free(data);  // in the cache when recording begins
  record();
  for (int round = 0; round < 10; ++round) {
    data = allocate(4096);
    allocator_.free(data);
  }
  EXPECT_EQ(actions().size(), 30U);
  allocator_.set_history({});
  EXPECT_EQ(actions().size(), 0U);
  // And the caches are back: no miss any more.
  allocator_.free(allocate(4096));
  std::byte* hit = allocate(4096);
  EXPECT_EQ(trace().size(), 0U);
  allocator_.free(hit);
}

TEST_F(AllocatorHistory, EntriesAndSegmentsNameThePool) {
  const PoolId pool{0, 7};
  record();
  allocator_.begin_allocate_to_pool(0, pool, [](StreamHandle) { return true; });
  std::byte* of_pool = allocate(600);
  allocator_.end_allocate_to_pool(0, pool);
  std::byte* other = allocate(600);
  const auto pools_of = [](const std::vector<TraceEntry>& entries) {
    std::vector<PoolId> pools;
    for (const TraceEntry& entry : entries) pools.push_back(entry.pool);
    return pools;
  };
  EXPECT_EQ(pools_of(trace()), (std::vector<PoolId>{pool, pool, {}, {}}));
  EXPECT_EQ(allocator_.snapshot().size(), 2U);
  const std::vector<SegmentView> segments = allocator_.snapshot(-1, pool);
  ASSERT_EQ(segments.size(), 1U);
  EXPECT_EQ(segments[0].pool, pool);
  EXPECT_EQ(trace().back().pool, pool);  // that snapshot
  settings_.clear = true;
  record();
  allocator_.free(of_pool);
  allocator_.free(other);
  EXPECT_EQ(pools_of(trace()), (std::vector<PoolId>{pool, pool, {}, {}}));
  allocator_.release_pool(0, pool);
}

TEST_F(AllocatorHistory, StreamsAndBlocksOfBeforeAreSeenAtTheirFree) {
  const StreamRef other = stream();
  std::byte* data = allocate(3 * kMiB, other);
  record();
  allocator_.free(data);
  const std::vector<TraceEntry> entries = trace();
  ASSERT_EQ(actions_of(entries),
            (std::vector<Action>{Action::kFreeRequested, Action::kFreeCompleted}));
  EXPECT_EQ(entries[0].stream, other.handle);
  EXPECT_EQ(entries[0].size_bytes, 3 * kMiB);
}

TEST_F(AllocatorHistory, AFreeEndsWhenNobodyUsesTheBlockAnyMore) {
  const StreamRef user = stream();
  std::byte* waiting = allocate(512);
  std::byte* lent = allocate(512);
  EXPECT_TRUE(allocator_.record_stream(waiting, user));
  const BlockView pinned = allocator_.pin(lent);
  record(ContextLevel::kAll);
  const SimHold hold = sim_->hold_stream(user);
  allocator_.free(waiting);
  allocator_.free(lent);
  EXPECT_EQ(actions(), (std::vector<Action>{Action::kFreeRequested, Action::kFreeRequested}));
  const auto completed = [&] {
    std::vector<std::uintptr_t> addresses;
    for (const TraceEntry& entry : trace()) {
      if (entry.action == Action::kFreeCompleted) addresses.push_back(entry.address);
    }
    return addresses;
  };
  EXPECT_EQ(drain_let_go(allocator_), 1);
  EXPECT_TRUE(completed().empty());
  allocator_.unpin(pinned.block);
  EXPECT_EQ(completed(), std::vector<std::uintptr_t>{address_of(lent)});
  sim_->release_hold(hold);
  allocator_.empty_cache();
  EXPECT_EQ(completed(), (std::vector<std::uintptr_t>{address_of(lent), address_of(waiting)}));
}

TEST_F(AllocatorHistory, TheRingKeepsTheLastEntries) {
  record(ContextLevel::kNever, 4);
  for (int round = 0; round < 5; ++round) allocator_.free(allocate(512));
  std::vector<TraceEntry> entries = trace();
  ASSERT_EQ(actions_of(entries),
            (std::vector<Action>{Action::kFreeCompleted, Action::kAlloc, Action::kFreeRequested,
                                 Action::kFreeCompleted}));
  // Smaller while it goes on: the oldest go. Larger: nothing is lost.
  record(ContextLevel::kNever, 2);
  EXPECT_EQ(actions(), (std::vector<Action>{Action::kFreeCompleted, Action::kSnapshot}));
  record(ContextLevel::kNever, 100);
  EXPECT_EQ(trace().size(), 2U);
  settings_.clear = true;
  record();
  EXPECT_TRUE(trace().empty());
  // None at all counts as one.
  settings_.clear = false;
  record(ContextLevel::kNever, 0);
  allocator_.free(allocate(512));
  EXPECT_EQ(actions(), std::vector<Action>{Action::kFreeCompleted});
}

TEST_F(AllocatorHistory, SkippedActionsAreNotKept) {
  settings_.skipped.set(static_cast<std::size_t>(Action::kFreeRequested));
  settings_.skipped.set(static_cast<std::size_t>(Action::kSegmentAlloc));
  record();
  allocator_.free(allocate(512));
  EXPECT_EQ(actions(), (std::vector<Action>{Action::kAlloc, Action::kFreeCompleted}));
}

TEST_F(AllocatorHistory, ASnapshotIsAnEntryOfTheNextOne) {
  record();
  std::byte* data = allocate(700);
  EXPECT_EQ(trace().back().action, Action::kAlloc);
  const TraceEntry last = trace().back();
  EXPECT_EQ(last.action, Action::kSnapshot);
  EXPECT_EQ(last.size_bytes, 1024U);  // active
  EXPECT_EQ(last.address, 0U);
  allocator_.free(data);
}

TEST_F(AllocatorHistory, FailuresAreEntries) {
  record(ContextLevel::kAlloc);
  static_cast<void>(out_of_memory([&] { static_cast<void>(allocate(5000 * kMiB + 1)); }));
  const TraceEntry last = trace().back();
  EXPECT_EQ(last.action, Action::kOutOfMemory);
  EXPECT_EQ(last.size_bytes, 5000 * kMiB + 512);
  EXPECT_EQ(last.address, sim_->memory_info(0).free_bytes);
  EXPECT_EQ(number_of(last.context), 1);
}

// ---- contexts ---------------------------------------------------------------------------------

TEST_F(AllocatorHistory, WithoutContextsNothingIsGathered) {
  record();
  allocator_.free(allocate(512));
  EXPECT_EQ(contexts_gathered.load(), 0);
}

TEST_F(AllocatorHistory, LiveBlocksAndTheirSegmentsKeepTheirContext) {
  record(ContextLevel::kState);
  std::byte* first = allocate(600);
  std::byte* second = allocate(600);
  EXPECT_EQ(contexts_gathered.load(), 2);
  const auto look = [&] { return allocator_.snapshot().at(0); };
  EXPECT_EQ(number_of(look().context), 1);
  EXPECT_EQ(number_of(look().blocks.at(0).context), 1);
  EXPECT_EQ(number_of(look().blocks.at(1).context), 2);
  EXPECT_EQ(number_of(look().blocks.at(2).context), 0);
  for (const TraceEntry& entry : trace()) EXPECT_EQ(entry.context, nullptr);
  allocator_.free(first);
  EXPECT_EQ(number_of(look().blocks.at(0).context), 0);
  allocator_.free(second);
  EXPECT_EQ(number_of(look().context), 0);  // "state" tells of what is in use
  EXPECT_EQ(contexts_gathered.load(), 2);
}

TEST_F(AllocatorHistory, BlocksThatOutliveTheRecordingGiveTheirContextBack) {
  record(ContextLevel::kState);
  std::byte* data = allocate(600);
  allocator_.set_history({});
  EXPECT_EQ(number_of(allocator_.snapshot().at(0).blocks.at(0).context), 1);
  allocator_.free(data);
  data = allocate(600);
  EXPECT_EQ(number_of(allocator_.snapshot().at(0).blocks.at(0).context), 0);
  allocator_.free(data);
  allocator_.empty_cache();
  EXPECT_EQ(contexts_alive.load(), 0);
}

TEST_F(AllocatorHistory, EntriesKeepTheAllocationsContext) {
  record(ContextLevel::kAlloc);
  allocator_.free(allocate(600));
  allocator_.empty_cache();
  const std::vector<TraceEntry> entries = trace();
  ASSERT_EQ(entries.size(), 5U);
  EXPECT_EQ(contexts_gathered.load(), 1);
  // empty_cache is no allocation: the segment goes with the context with which it came.
  for (const std::size_t index : {0U, 1U, 2U, 3U, 4U}) {
    EXPECT_EQ(number_of(entries[index].context), 1) << index;
  }
}

TEST_F(AllocatorHistory, FreesHaveContextsOfTheirOwn) {
  record(ContextLevel::kAll);
  allocator_.free(allocate(600));
  allocator_.empty_cache();
  const std::vector<TraceEntry> entries = trace();
  ASSERT_EQ(entries.size(), 5U);
  EXPECT_EQ(number_of(entries[1].context), 1);
  EXPECT_EQ(number_of(entries[2].context), 2);
  EXPECT_EQ(number_of(entries[3].context), 2);
  EXPECT_EQ(number_of(entries[4].context), 3);
}

TEST_F(AllocatorHistory, WhatBecomesFreeDuringAnAllocationIsNotItsDoing) {
  const StreamRef user = stream();
  record(ContextLevel::kAll);
  std::byte* data = allocate(600);
  EXPECT_TRUE(allocator_.record_stream(data, user));
  allocator_.free(data);
  sim_->wait_until_idle();
  std::byte* other = allocate(600);  // asks the event
  const std::vector<TraceEntry> entries = trace();
  ASSERT_EQ(entries.size(), 5U);
  EXPECT_EQ(entries[3].action, Action::kFreeCompleted);
  EXPECT_EQ(number_of(entries[3].context), 1);
  EXPECT_EQ(number_of(entries[4].context), 3);
  allocator_.free(other);
}

TEST_F(AllocatorHistory, ACallThatNobodyCanExplainGoesOnWithoutContext) {
  record(ContextLevel::kAll);
  settings_.gather = fail_to_gather;
  allocator_.set_history(settings_);
  allocator_.free(allocate(600));
  EXPECT_EQ(number_of(trace().at(1).context), 0);
}

TEST_F(AllocatorHistory, ContextsNeedAFunctionThatMakesThem) {
  HistorySettings settings;
  settings.enabled = true;
  settings.contexts = ContextLevel::kState;
  EXPECT_ERROR(allocator_.set_history(settings), kBadArgument);
  EXPECT_FALSE(allocator_.history_enabled());
}

TEST_F(AllocatorHistory, AThreadsNotesAreOnItsEntries) {
  record();
  thread_notes()->user_metadata = "step 1";
  thread_notes()->compile_contexts = {"outer", "inner"};
  std::byte* data = allocate(600);
  *thread_notes() = {};
  std::thread([&] {
    thread_notes()->user_metadata = "another thread";
    allocator_.free(data);
  }).join();
  const std::vector<TraceEntry> entries = trace();
  ASSERT_EQ(entries.size(), 4U);
  EXPECT_EQ(entries[1].user_metadata, "step 1");
  EXPECT_EQ(entries[1].compile_context, "inner");
  EXPECT_EQ(entries[3].user_metadata, "another thread");
  EXPECT_EQ(entries[3].compile_context, "");
}

TEST_F(AllocatorHistory, RecordingMayBeSwitchedWhileOthersAllocate) {
  std::atomic<bool> stop{false};
  std::vector<std::thread> threads;
  for (int index = 0; index < 3; ++index) {
    threads.emplace_back([&] {
      while (!stop) allocator_.free(allocate(512));
    });
  }
  for (int round = 0; round < 50; ++round) {
    record(ContextLevel::kAll, 100);
    std::byte* seen = allocate(2048);
    EXPECT_FALSE(trace().empty());
    allocator_.set_history({});
    EXPECT_TRUE(trace().empty());
    allocator_.free(seen);
  }
  stop = true;
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace limbo::testing
