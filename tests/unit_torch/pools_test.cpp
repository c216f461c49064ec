// What torch asks of private pools: torch.cuda.MemPool, CUDA graphs, cudagraph trees.
#include <sys/wait.h>
#include <torch/csrc/cuda/CUDAPluggableAllocator.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "allocator/capture_gate.h"
#include "allocator/device/sim_device.h"
#include "allocator/error.h"
#include "hooks/adapter.h"
#include "hooks/capi.h"
#include "hooks/current_stream.h"
#include "hooks/install.h"
#include "hooks/tensors.h"
#include "tests/support/child_process.h"
#include "tests/support/eventually.h"
#include "tests/support/sandbox.h"
#include "tests/unit_torch/pools_support.h"

namespace limbo::testing {
namespace {

namespace torch_cuda = c10::cuda::CUDACachingAllocator;

TEST_F(PoolsOfTorch, LiveAsLongAsTheirObject) {
  adapter().createOrIncrefPool(0, kPool, nullptr);
  EXPECT_EQ(adapter().getPoolUseCount(0, kPool), 1);
  adapter().beginAllocateToPool(0, kPool, everything);
  EXPECT_EQ(adapter().getPoolUseCount(0, kPool), 2);
  void* data = adapter().raw_alloc(1000);
  adapter().endAllocateToPool(0, kPool);
  adapter().releasePool(0, kPool);
  void* plain = adapter().raw_alloc(1000);
  const auto segments = adapter().snapshot(kPool, true).segments;
  ASSERT_EQ(segments.size(), 1U);
  EXPECT_EQ(segments[0].owner_private_pool_id, kPool);
  EXPECT_EQ(adapter().snapshot({0, 0}, true).segments.size(), 2U);
  adapter().raw_delete(data);
  adapter().emptyCache({0, 0});
  EXPECT_EQ(segments_of(kPool), 1U);
  end_pool();
  EXPECT_EQ(segments_of(kPool), 0U);
  adapter().raw_delete(plain);
}

TEST_F(PoolsOfTorch, FiltersGetTorchsStreams) {
  Device& device = allocator_in_use().device();
  const StreamRef side{0, device.create_stream(0)};
  adapter().beginAllocateToPool(0, kPool, [side](cudaStream_t stream) {
    return stream == static_cast<cudaStream_t>(side.handle);
  });
  void* inside = adapter().raw_alloc_with_stream(1000, static_cast<cudaStream_t>(side.handle));
  void* outside = adapter().raw_alloc(1000);
  EXPECT_TRUE(adapter().checkPoolLiveAllocations(0, kPool, {inside}));
  EXPECT_FALSE(adapter().checkPoolLiveAllocations(0, kPool, {inside, outside}));
  EXPECT_FALSE(adapter().checkPoolLiveAllocations(0, kPool, {}));
  EXPECT_FALSE(adapter().checkPoolLiveAllocations(0, kPool, {outside}));
  adapter().endAllocateToPool(0, kPool);
  adapter().releasePool(0, kPool);
  adapter().raw_delete(inside);
  adapter().raw_delete(outside);
  adapter().emptyCache({0, 0});
  device.destroy_stream(side);
}

bool a_capture_is_announced() {
  return capture_gate::state.load() >= capture_gate::kOneBeginning;
}

// torch captures right behind it. What sees the capture, or its end, ends the announcement.
TEST_F(PoolsOfTorch, TheRouteOfACaptureAnnouncesIt) {
  bool captured = false;
  const auto begin = [&] {
    captured = false;
    adapter().beginAllocateToPool(0, kPool, [&](cudaStream_t) { return captured; });
    EXPECT_TRUE(a_capture_is_announced());
  };
  const auto end = [] {
    adapter().endAllocateToPool(0, kPool);
    EXPECT_FALSE(a_capture_is_announced());
    adapter().releasePool(0, kPool);
  };
  begin();
  captured = true;
  void* inside = adapter().raw_alloc(1000);
  EXPECT_FALSE(a_capture_is_announced());
  end();
  begin();  // and nothing is allocated
  end();
  adapter().raw_delete(inside);
}

// torch does not say so, but the thread that was to begin it comes back.
TEST_F(PoolsOfTorch, ACaptureThatHasFailedToBeginIsAnnouncedUntilItsThreadAllocates) {
  SimDevice& sim = as_sim(allocator_in_use().device());
  const StreamRef own{0, sim.create_stream(0)};
  for (const StreamRef stream : {StreamRef{0, nullptr}, own}) {
    const StreamHandle before = set_simulated_stream(stream);
    const auto announced_at = std::chrono::steady_clock::now();
    adapter().beginAllocateToPool(0, kPool, [](cudaStream_t) { return false; });
    set_simulated_stream({0, before});
    std::thread([] { adapter().raw_delete(adapter().raw_alloc(1000)); }).join();
    EXPECT_TRUE(a_capture_is_announced() || std::chrono::steady_clock::now() - announced_at >=
                                                capture_gate::kLongestAnnouncement);
    adapter().raw_delete(adapter().raw_alloc(1000));
    EXPECT_FALSE(a_capture_is_announced());
    adapter().endAllocateToPool(0, kPool);
    adapter().releasePool(0, kPool);
  }
  adapter().emptyCache({0, 0});
  sim.destroy_stream(own);
}

TEST_F(PoolsOfTorch, SoItIsUntilItsThreadBeginsAnother) {
  constexpr c10::MempoolId_t kLeft{0, 2};
  adapter().beginAllocateToPool(0, kLeft, [](cudaStream_t) { return false; });
  EXPECT_TRUE(a_capture_is_announced());
  adapter().beginAllocateToPool(0, kPool, everything);
  EXPECT_FALSE(a_capture_is_announced());
  for (const c10::MempoolId_t& pool : {kPool, kLeft}) {
    adapter().endAllocateToPool(0, pool);
    adapter().releasePool(0, pool);
  }
}

// The stream may be destroyed behind the end.
TEST_F(PoolsOfTorch, TheEndOfARouteWaitsForWhoAsksAboutItsStream) {
  SimDevice& sim = as_sim(allocator_in_use().device());
  adapter().beginAllocateToPool(0, kPool, [](cudaStream_t) { return false; });
  sim.reset_calls();
  sim.faults().add("is_capturing:1=hang");
  std::thread asks([&] {
    while (sim.calls(CallKind::kIsCapturing) == 0) {  // again, where it lasted no longer
      (void)capture_gate::announce({0, nullptr});
      (void)static_cast<bool>(StreamQuestion(sim));
    }
  });
  ASSERT_TRUE(sim.faults().wait_for_hanging(1, kPatience));
  std::atomic<bool> ended{false};
  std::thread ends([&] {
    adapter().endAllocateToPool(0, kPool);
    ended = true;
  });
  EXPECT_FALSE(eventually([&] { return ended.load(); }, std::chrono::milliseconds(50)));
  sim.faults().release_hangs();
  ends.join();
  asks.join();
  sim.faults().clear();
  adapter().releasePool(0, kPool);
}

TEST_F(PoolsOfTorch, TheRouteOfAMemPoolAnnouncesNothing) {
  adapter().beginAllocateToPool(0, kPool, everything);
  EXPECT_FALSE(a_capture_is_announced());
  adapter().endAllocateToPool(0, kPool);
  adapter().releasePool(0, kPool);
}

// As a program leaves it whose code between begin and end has failed.
TEST_F(PoolsOfTorch, ARouteThatIsNeverEndedKeepsNoOtherMemory) {
  constexpr c10::MempoolId_t kLeft{0, 2};
  adapter().beginAllocateToPool(0, kLeft, [](cudaStream_t) { return false; });
  adapter().raw_delete(adapter().raw_alloc(30 * kMiB));
  adapter().emptyCache({0, 0});
  EXPECT_EQ(adapter().getDeviceStats(0).reserved_bytes[kAll].current, 0);
  adapter().createOrIncrefPool(0, kPool, nullptr);
  adapter().raw_delete(allocate_in_pool(30 * kMiB));
  end_pool();
  EXPECT_EQ(segments_of(kPool), 0U);
  adapter().endAllocateToPool(0, kLeft);
  adapter().releasePool(0, kLeft);
}

// The driver may crash when it is asked about a stream that the program has destroyed.
TEST_F(PoolsOfTorch, RoutesThatAreNeverEndedDoNotAskAboutAProgramsStream) {
  SimDevice& sim = as_sim(allocator_in_use().device());
  for (const bool of_capture : {false, true}) {
    const StreamRef own{0, sim.create_stream(0)};
    const StreamHandle before = set_simulated_stream(own);
    adapter().beginAllocateToPool(0, kPool, [=](cudaStream_t stream) {
      return !of_capture && stream == static_cast<cudaStream_t>(own.handle);
    });
    set_simulated_stream({0, before});
    EXPECT_EQ(a_capture_is_announced(), of_capture);
    sim.destroy_stream(own);
    sim.reset_calls();
    EXPECT_EQ(static_cast<bool>(StreamQuestion(sim)), !of_capture);
    EXPECT_EQ(sim.calls(CallKind::kIsCapturing), 0U);
    capture_gate::begun(own);  // nothing is announced any more
    adapter().raw_delete(adapter().raw_alloc(30 * kMiB));
    sim.reset_calls();
    adapter().emptyCache({0, 0});
    const auto reserved = adapter().getDeviceStats(0).reserved_bytes[kAll].current;
    EXPECT_EQ(reserved != 0, of_capture);  // it counts as one that goes on
    // Else the default stream is asked: what cannot be would count as captured.
    EXPECT_EQ(sim.calls(CallKind::kIsCapturing) == 0, of_capture);
    adapter().endAllocateToPool(0, kPool);
    adapter().releasePool(0, kPool);
    adapter().emptyCache(kPool);
    adapter().emptyCache({0, 0});
  }
}

TEST_F(PoolsOfTorch, BlocksOfThoseThatDoNotSplitAreSegments) {
  adapter().createOrIncrefPool(0, kPool, nullptr);
  adapter().setNoSplit(0, kPool);
  void* first = allocate_in_pool(4 * kMiB);
  void* second = allocate_in_pool(4 * kMiB);
  EXPECT_EQ(segments_of(kPool), 2U);
  adapter().raw_delete(first);
  adapter().raw_delete(second);
  end_pool();
}

TEST_F(PoolsOfTorch, WrongNamesAreErrorsOfTheirOwn) {
  const c10::MempoolId_t nowhere{9, 9};
  const std::vector<std::function<void()>> wrong = {
      [&] { adapter().beginAllocateToPool(0, kPool, nullptr); },
      [&] {
        adapter().beginAllocateToPool(0, {0, 0}, everything);
      },
      [&] { adapter().createOrIncrefPool(99, kPool, nullptr); },
      [&] { adapter().endAllocateToPool(0, nowhere); },
      [&] { adapter().releasePool(0, nowhere); },
      [&] { adapter().setUseOnOOM(0, nowhere, true); },
      [&] { adapter().setNoSplit(0, nowhere); },
      [&] { (void)adapter().checkPoolLiveAllocations(0, nowhere, {}); },
      [&] { (void)adapter().getCheckpointState(0, nowhere); },
      [&] { (void)adapter().setCheckpointPoolState(0, nullptr); },
  };
  for (const auto& call : wrong) expect_starts_with(torch_error_of(call), "limbo[bad_argument]: ");
  EXPECT_EQ(adapter().getPoolUseCount(0, nowhere), 0);
  EXPECT_EQ(segments_of(nowhere), 0U);
  adapter().emptyCache(nowhere);
}

// A child that was forked from here drops the parent's pools without a word.
TEST_F(PoolsOfTorch, EndInAForkChildToo) {
  adapter().createOrIncrefPool(0, kPool, nullptr);
  void* data = allocate_in_pool(1000);
  const pid_t pid = ::fork();
  if (pid == 0) {
    const bool one = adapter().getPoolUseCount(0, kPool) == 1;
    const std::string text = torch_error_of([] {
      adapter().raw_delete(nullptr);
      adapter().setUseOnOOM(0, kPool, false);
      adapter().releasePool(0, kPool);
      adapter().emptyCache(kPool);
    });
    ::_exit(one && text == "nothing was thrown" ? 0 : 1);
  }
  int status = 0;
  EXPECT_EQ(::waitpid(pid, &status, 0), pid);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  adapter().raw_delete(data);
  end_pool();
}

// ---- checkpoints --------------------------------------------------------------------------------

TEST_F(PoolsOfTorch, GoBackToACheckpoint) {
  adapter().createOrIncrefPool(0, kPool, nullptr);
  void* kept = allocate_in_pool(4096);
  const auto state = adapter().getCheckpointState(0, kPool);
  void* stale = allocate_in_pool(3 * kMiB);
  auto delta = adapter().setCheckpointPoolState(0, state);
  std::vector<void*> freed = delta.ptrs_freed;
  std::sort(freed.begin(), freed.end());
  std::vector<void*> both = {kept, stale};
  std::sort(both.begin(), both.end());
  EXPECT_EQ(freed, both);
  ASSERT_EQ(delta.dataptrs_allocd.size(), 1U);
  const c10::DataPtr& data = delta.dataptrs_allocd[0];
  EXPECT_EQ(data.get(), kept);
  EXPECT_EQ(data.get_context(), kept);
  EXPECT_EQ(data.get_deleter(), adapter().raw_deleter());
  EXPECT_EQ(data.device(), c10::Device(c10::DeviceType::CUDA, 0));
  EXPECT_TRUE(adapter().checkPoolLiveAllocations(0, kPool, {kept}));
  delta.dataptrs_allocd.clear();  // frees it
  EXPECT_TRUE(adapter().checkPoolLiveAllocations(0, kPool, {}));
  end_pool();
}

TEST_F(PoolsOfTorch, StatesOfOthersAreRefused) {
  struct Foreign : torch_cuda::AllocatorState {};
  const auto foreign = std::make_shared<Foreign>();
  expect_starts_with(torch_error_of([&] { (void)adapter().setCheckpointPoolState(0, foreign); }),
                     "limbo[bad_argument]: ");
  adapter().createOrIncrefPool(0, kPool, nullptr);
  const auto state = adapter().getCheckpointState(0, kPool);
  expect_starts_with(torch_error_of([&] { (void)adapter().setCheckpointPoolState(1, state); }),
                     "limbo[bad_argument]: ");
  end_pool();
  expect_starts_with(torch_error_of([&] { (void)adapter().setCheckpointPoolState(0, state); }),
                     "limbo[bad_argument]: ");
}

}  // namespace
}  // namespace limbo::testing
