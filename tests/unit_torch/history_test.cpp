// History and trackers through torch's interface.
#include "hooks/history.h"

#include <c10/core/AllocatorConfig.h>
#include <c10/util/ApproximateClock.h>

#include <bit>
#include <map>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "hooks/adapter.h"
#include "hooks/current_stream.h"
#include "hooks/install.h"
#include "tests/support/child_process.h"
#include "tests/support/sizes.h"
#include "tests/unit_torch/torch_support.h"

namespace limbo::testing {
namespace {

namespace torch_cuda = c10::cuda::CUDACachingAllocator;
using torch_cuda::RecordContext;
using Entry = torch_cuda::TraceEntry;
constexpr c10::MempoolId_t kDefaultPool{0, 0};

struct NumberedContext final : c10::GatheredContext {
  explicit NumberedContext(int of) : number(of) {}
  int number;
};

int contexts_made = 0;

std::shared_ptr<c10::GatheredContext> make_context() {
  return std::make_shared<NumberedContext>(++contexts_made);
}

int number_of(const std::shared_ptr<c10::GatheredContext>& context) {
  return context == nullptr ? 0 : dynamic_cast<const NumberedContext&>(*context).number;
}

// Trackers stay, so what they hear goes where the test of the moment looks.
std::vector<Entry>* heard = nullptr;

void listen() {
  static const bool attached = [] {
    adapter().attachAllocatorTraceTracker([](const Entry& entry) {
      if (heard != nullptr) heard->push_back(entry);
    });
    return true;
  }();
  static_cast<void>(attached);
}

class HistoryTest : public TorchTest {
 protected:
  void SetUp() override {
    TorchTest::SetUp();
    install();
    contexts_made = 0;
  }
  void TearDown() override {
    record(false, RecordContext::NEVER);
    heard = nullptr;
    EXPECT_EQ(adapter().getDeviceStats(0).allocation[kAll].current, 0);
    adapter().emptyCache(kDefaultPool);
    EXPECT_EQ(adapter().getDeviceStats(0).reserved_bytes[kAll].current, 0);
    TorchTest::TearDown();
  }

  static void record(bool enabled, RecordContext when, std::size_t max_entries = 1000,
                     bool clear = false, const std::vector<std::string>& skipped = {}) {
    adapter().recordHistory(enabled, enabled ? &make_context : nullptr, max_entries, when, clear,
                            skipped);
  }
  static std::vector<Entry> trace() {
    return adapter().snapshot(kDefaultPool, true).device_traces.at(0);
  }
  static std::vector<int> actions_of(const std::vector<Entry>& entries) {
    std::vector<int> actions;
    for (const Entry& entry : entries) actions.push_back(entry.action_);
    return actions;
  }
};

TEST_F(HistoryTest, RecordHistoryKeepsWhatHappensWithItsTime) {
  EXPECT_FALSE(adapter().isHistoryEnabled());
  record(true, RecordContext::NEVER);
  EXPECT_TRUE(adapter().isHistoryEnabled());
  void* data = adapter().raw_alloc(1000);
  adapter().raw_delete(data);
  adapter().emptyCache(kDefaultPool);
  const std::vector<Entry> entries = trace();
  ASSERT_EQ(actions_of(entries),
            (std::vector<int>{Entry::SEGMENT_ALLOC, Entry::ALLOC, Entry::FREE_REQUESTED,
                              Entry::FREE_COMPLETED, Entry::SEGMENT_FREE}));
  const c10::time_t now_us = c10::getTimeSinceEpoch() / 1000;
  for (const Entry& entry : entries) {
    EXPECT_EQ(entry.addr_, std::bit_cast<std::size_t>(data));
    EXPECT_EQ(entry.device_, 0);
    EXPECT_EQ(entry.mempool_, kDefaultPool);
    EXPECT_EQ(entry.stream_, current_stream(0).handle);
    EXPECT_NEAR(static_cast<double>(entry.time_.t_), static_cast<double>(now_us), 60e6);
  }
  EXPECT_EQ(entries[0].size_, 2 * kMiB);
  EXPECT_EQ(entries[1].size_, 1000U);
  record(false, RecordContext::NEVER);
  EXPECT_FALSE(adapter().isHistoryEnabled());
  EXPECT_TRUE(trace().empty());
}

TEST_F(HistoryTest, RecordHistoryKeepsContexts) {
  record(true, RecordContext::ALL);
  void* data = adapter().raw_alloc(1000);
  const auto snapshot = adapter().snapshot(kDefaultPool, true);
  EXPECT_EQ(number_of(snapshot.segments.at(0).context_when_allocated), 1);
  EXPECT_EQ(number_of(snapshot.segments.at(0).blocks.at(0).context_when_allocated), 1);
  EXPECT_EQ(snapshot.segments.at(0).blocks.at(1).context_when_allocated, nullptr);
  EXPECT_EQ(number_of(snapshot.device_traces.at(0).at(1).context_), 1);
  adapter().raw_delete(data);
  EXPECT_EQ(number_of(trace().back().context_), 2);
  record(true, RecordContext::STATE, 1000, true);
  data = adapter().raw_alloc(1000);
  EXPECT_EQ(trace().back().context_, nullptr);
  EXPECT_EQ(number_of(adapter()
                          .snapshot(kDefaultPool, true)
                          .segments.at(0)
                          .blocks.at(0)
                          .context_when_allocated),
            3);
  adapter().raw_delete(data);
  EXPECT_EQ(contexts_made, 3);
}

TEST_F(HistoryTest, RecordHistoryWantsARecorderForContexts) {
  expect_starts_with(torch_error_of([] {
                       adapter().recordHistory(true, nullptr, 10, RecordContext::ALL, false, {});
                     }),
                     "Contexts are to be recorded, and there is no context recorder.");
  EXPECT_FALSE(adapter().isHistoryEnabled());
}

TEST_F(HistoryTest, RecordHistorySkipsActionsByName) {
  record(true, RecordContext::NEVER, 1000, false,
         {"free_requested", "segment_alloc", "segment_map", "snapshot"});
  adapter().raw_delete(adapter().raw_alloc(1000));
  static_cast<void>(trace());
  EXPECT_EQ(actions_of(trace()), (std::vector<int>{Entry::ALLOC, Entry::FREE_COMPLETED}));
  expect_starts_with(
      torch_error_of([] { record(true, RecordContext::NEVER, 10, false, {"free_whatever"}); }),
      "Unknown TraceEntry action: free_whatever");
}

TEST_F(HistoryTest, RecordHistoryIsBounded) {
  record(true, RecordContext::NEVER, 4);
  for (int round = 0; round < 5; ++round) adapter().raw_delete(adapter().raw_alloc(512));
  EXPECT_EQ(actions_of(trace()), (std::vector<int>{Entry::FREE_COMPLETED, Entry::ALLOC,
                                                   Entry::FREE_REQUESTED, Entry::FREE_COMPLETED}));
}

TEST_F(HistoryTest, ASnapshotWithoutTracesHasNone) {
  record(true, RecordContext::NEVER);
  void* data = adapter().raw_alloc(1000);
  adapter().recordAnnotation({{"name", "a step"}});
  const auto snapshot = adapter().snapshot(kDefaultPool, false);
  EXPECT_TRUE(snapshot.device_traces.empty());
  EXPECT_TRUE(snapshot.external_annotations.empty());
  EXPECT_EQ(snapshot.segments.size(), 1U);
  EXPECT_GE(snapshot.segments.at(0).registration_counter, 0);
  EXPECT_EQ(snapshot.segments.at(0).owner_private_pool_id, kDefaultPool);
  adapter().raw_delete(data);
}

TEST_F(HistoryTest, AnnotationsAreKeptWhileHistoryIsRecorded) {
  adapter().recordAnnotation({{"name", "before"}});
  record(true, RecordContext::NEVER, 2);
  for (const char* name : {"one", "two", "three"}) {
    adapter().recordAnnotation({{"name", name}, {"stage", "START"}});
  }
  const auto annotations = adapter().snapshot(kDefaultPool, true).external_annotations;
  ASSERT_EQ(annotations.size(), 2U);
  EXPECT_EQ(annotations[0].metadata_.at("name"), "two");
  EXPECT_EQ(annotations[1].metadata_.at("stage"), "START");
  EXPECT_EQ(annotations[1].device_, 0);
  EXPECT_NEAR(static_cast<double>(annotations[1].time_.t_),
              static_cast<double>(c10::getTimeSinceEpoch()) / 1000, 60e6);
  record(false, RecordContext::NEVER);
  EXPECT_TRUE(adapter().snapshot(kDefaultPool, true).external_annotations.empty());
}

TEST_F(HistoryTest, CompileContextsNestAndBelongToTheThread) {
  record(true, RecordContext::NEVER);
  adapter().popCompileContext();  // of a push that nobody made: nothing
  std::string outer = "outer";
  std::string inner = "inner";
  std::vector<void*> kept;
  const auto allocate = [&] { kept.push_back(adapter().raw_alloc(512)); };
  adapter().pushCompileContext(outer);
  allocate();
  adapter().pushCompileContext(inner);
  allocate();
  std::thread(allocate).join();
  adapter().popCompileContext();
  allocate();
  adapter().popCompileContext();
  allocate();
  std::vector<std::string> seen;
  for (const Entry& entry : trace()) {
    if (entry.action_ == Entry::ALLOC) seen.push_back(entry.compile_context_);
  }
  EXPECT_EQ(seen, (std::vector<std::string>{"outer", "inner", "N/A", "outer", "N/A"}));
  for (void* data : kept) adapter().raw_delete(data);
}

TEST_F(HistoryTest, UserMetadataIsOnEntries) {
  record(true, RecordContext::NEVER);
  adapter().setUserMetadata("step 3");
  void* data = adapter().raw_alloc(512);
  adapter().setUserMetadata("");
  EXPECT_EQ(trace().back().user_metadata_, "step 3");
  adapter().raw_delete(data);
  EXPECT_EQ(trace().back().user_metadata_, "");
}

// ---- trackers ---------------------------------------------------------------------------------

TEST_F(HistoryTest, ATraceTrackerHearsEverythingWithoutHistory) {
  listen();
  std::vector<Entry> entries;
  heard = &entries;
  for (int round = 0; round < 2; ++round) adapter().raw_delete(adapter().raw_alloc(1000));
  adapter().emptyCache(kDefaultPool);
  EXPECT_EQ(actions_of(entries),
            (std::vector<int>{Entry::SEGMENT_ALLOC, Entry::ALLOC, Entry::FREE_REQUESTED,
                              Entry::FREE_COMPLETED, Entry::ALLOC, Entry::FREE_REQUESTED,
                              Entry::FREE_COMPLETED, Entry::SEGMENT_FREE}));
  for (const Entry& entry : entries) EXPECT_EQ(entry.mempool_, kDefaultPool);
}

TEST_F(HistoryTest, WhoListensMustBeAFunction) {
  expect_starts_with(torch_error_of([] { adapter().attachAllocatorTraceTracker(nullptr); }),
                     "An allocator trace tracker was attached that is no function.");
  expect_starts_with(torch_error_of([] { adapter().attachOutOfMemoryObserver(nullptr); }),
                     "An out-of-memory observer was attached that is no function.");
}

// In a process of its own, which has not used memory yet.
LIMBO_CHILD_ROLE(early_trace_tracker) {
  install();
  static int entries = 0;
  adapter().attachAllocatorTraceTracker([](const Entry&) { ++entries; });
  child.send(in_use() ? "the device was touched" : "nothing was touched");
  adapter().raw_delete(adapter().raw_alloc(1000));
  child.send(std::to_string(entries));
  return 0;
}

TEST_F(HistoryTest, ATraceTrackerMayComeBeforeTheFirstUse) {
  ChildProcess child("early_trace_tracker");
  child.expect("nothing was touched");
  child.expect("4");
  child.finish();
}

// ---- every free is that of an allocation ------------------------------------------------------

TEST_F(HistoryTest, EveryFreeHasSizeDeviceAndStreamOfItsAllocation) {
  listen();
  std::vector<Entry> entries;
  heard = &entries;
  const StreamHandle side = allocator_in_use().device().create_stream(0);
  std::vector<void*> live;
  std::minstd_rand random(11);
  for (int step = 0; step < 1000; ++step) {
    if (random() % 3 != 0 || live.empty()) {
      const std::size_t size_bytes = random() % 10 == 0 ? 0 : random() % (3 * kMiB);
      const auto stream = random() % 2 == 0 ? nullptr : static_cast<cudaStream_t>(side);
      live.push_back(adapter().raw_alloc_with_stream(size_bytes, stream));
      EXPECT_EQ(live.back() == nullptr, size_bytes == 0);
    } else {
      std::swap(live[random() % live.size()], live.back());
      adapter().raw_delete(live.back());
      live.pop_back();
    }
  }
  for (void* data : live) adapter().raw_delete(data);
  std::map<std::size_t, Entry> allocated;
  std::map<std::size_t, Entry> freed;
  for (const Entry& entry : entries) {
    const bool of_segment = entry.action_ == Entry::SEGMENT_ALLOC;
    ASSERT_GT(entry.size_, 0U);  // nothing is asked of anybody for no bytes
    if (of_segment) continue;
    auto& before = entry.action_ == Entry::FREE_COMPLETED ? freed : allocated;
    if (entry.action_ == Entry::ALLOC) {
      ASSERT_TRUE(allocated.emplace(entry.addr_, entry).second);
      continue;
    }
    const auto at = before.find(entry.addr_);
    ASSERT_NE(at, before.end());
    EXPECT_EQ(at->second.size_, entry.size_);
    EXPECT_EQ(at->second.device_, entry.device_);
    EXPECT_EQ(at->second.stream_, entry.stream_);
    if (entry.action_ == Entry::FREE_REQUESTED) freed.emplace(entry.addr_, entry);
    before.erase(at);
  }
  EXPECT_TRUE(allocated.empty());
  EXPECT_TRUE(freed.empty());
  adapter().emptyCache(kDefaultPool);
}

// ---- numbers ----------------------------------------------------------------------------------

TEST_F(HistoryTest, OversizeBlocksAndSegmentsAreInTheStatistics) {
  c10::CachingAllocator::setAllocatorSettings("max_split_size_mb:24");
  void* data = adapter().raw_alloc(30 * kMiB);
  auto stats = adapter().getDeviceStats(0);
  EXPECT_EQ(stats.oversize_allocations.current, 1);
  EXPECT_EQ(stats.oversize_segments.current, 1);
  EXPECT_EQ(stats.max_split_size, 24 * static_cast<std::int64_t>(kMiB));
  adapter().raw_delete(data);
  adapter().emptyCache(kDefaultPool);
  stats = adapter().getDeviceStats(0);
  EXPECT_EQ(stats.oversize_allocations.current, 0);
  EXPECT_EQ(stats.oversize_allocations.peak, 1);
  EXPECT_EQ(stats.oversize_segments.current, 0);
  adapter().resetPeakStats(0);
  adapter().resetAccumulatedStats(0);
  stats = adapter().getDeviceStats(0);
  EXPECT_EQ(stats.oversize_allocations.peak, 0);
  EXPECT_EQ(stats.oversize_segments.allocated, 0);
  c10::CachingAllocator::setAllocatorSettings("");
}

TEST_F(HistoryTest, EmptyCacheWaitsForAllStreamsOnce) {
  const auto syncs = [] { return adapter().getDeviceStats(0).num_sync_all_streams; };
  const std::int64_t before = syncs();
  adapter().emptyCache(kDefaultPool);
  EXPECT_EQ(syncs(), before + 1);
}

}  // namespace
}  // namespace limbo::testing
