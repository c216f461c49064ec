#include "hooks/adapter.h"

#include <c10/util/ThreadLocalDebugInfo.h>
#include <sys/wait.h>
#include <unistd.h>

#include <functional>
#include <limits>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "allocator/device/sim_device.h"
#include "hooks/callbacks.h"
#include "hooks/current_stream.h"
#include "hooks/install.h"
#include "ipc/fail_points.h"
#include "tests/support/eventually.h"
#include "tests/support/shared_words.h"
#include "tests/support/sizes.h"
#include "tests/unit_torch/torch_support.h"

namespace limbo::testing {
namespace {

namespace torch_cuda = c10::cuda::CUDACachingAllocator;
constexpr auto kSmall = static_cast<std::size_t>(c10::CachingAllocator::StatType::SMALL_POOL);
constexpr auto kLarge = static_cast<std::size_t>(c10::CachingAllocator::StatType::LARGE_POOL);

class AdapterTest : public TorchTest {
 protected:
  void SetUp() override {
    TorchTest::SetUp();
    install();
  }
  // Every test gives back what it took.
  void TearDown() override {
    EXPECT_EQ(adapter().getDeviceStats(0).allocation[kAll].current, 0);
    adapter().emptyCache({0, 0});
    EXPECT_EQ(adapter().getDeviceStats(0).reserved_bytes[kAll].current, 0);
    TorchTest::TearDown();
  }
};

TEST_F(AdapterTest, ADataPtrIsItsPointerWithOneDeleter) {
  const c10::DataPtr data = adapter().allocate(100);
  EXPECT_NE(data.get(), nullptr);
  EXPECT_EQ(data.get(), data.get_context());
  EXPECT_EQ(data.get_deleter(), adapter().raw_deleter());
  EXPECT_EQ(data.device(), c10::Device(c10::DeviceType::CUDA, 0));
  EXPECT_TRUE(adapter().is_simple_data_ptr(data));
  void* raw = adapter().raw_allocate(100);
  EXPECT_NE(raw, nullptr);
  adapter().raw_deallocate(raw);
}

TEST_F(AdapterTest, NothingIsNull) {
  const c10::DataPtr data = adapter().allocate(0);
  EXPECT_EQ(data.get(), nullptr);
  EXPECT_EQ(data.device(), c10::Device(c10::DeviceType::CUDA, 0));
  EXPECT_EQ(adapter().raw_alloc(0), nullptr);
  EXPECT_EQ(adapter().raw_alloc_with_stream(0, nullptr), nullptr);
  adapter().raw_delete(nullptr);
  EXPECT_EQ(adapter().getDeviceStats(0).allocation[kAll].current, 0);
}

TEST_F(AdapterTest, StatisticsAreTorchs) {
  void* small = adapter().raw_alloc(1000);
  void* large = adapter().raw_alloc(3 * kMiB);
  const auto stats = adapter().getDeviceStats(0);
  EXPECT_EQ(stats.allocated_bytes[kSmall].current, 1024);
  EXPECT_EQ(stats.allocated_bytes[kLarge].current, 3 * static_cast<std::int64_t>(kMiB));
  EXPECT_EQ(stats.requested_bytes[kSmall].current, 1000);
  EXPECT_EQ(stats.reserved_bytes[kAll].current, 22 * static_cast<std::int64_t>(kMiB));
  EXPECT_EQ(stats.segment[kAll].current, 2);
  EXPECT_EQ(stats.allocation[kAll].current, 2);
  EXPECT_EQ(stats.active[kAll].current, 2);
  EXPECT_EQ(stats.inactive_split[kAll].current, 2);
  EXPECT_EQ(stats.inactive_split_bytes[kSmall].current, 2 * static_cast<std::int64_t>(kMiB) - 1024);
  EXPECT_EQ(stats.max_split_size, -1);
  adapter().raw_delete(small);
  adapter().resetPeakStats(0);
  adapter().resetAccumulatedStats(0);
  const auto later = adapter().getDeviceStats(0);
  EXPECT_EQ(later.allocated_bytes[kAll].peak, later.allocated_bytes[kAll].current);
  EXPECT_EQ(later.allocated_bytes[kAll].allocated, 0);
  EXPECT_EQ(later.allocated_bytes[kAll].freed, 0);
  adapter().raw_delete(large);
  for (const int device : {-1, 100}) {
    expect_starts_with(torch_error_of([&] {
                         (void)adapter().getDeviceStats(static_cast<c10::DeviceIndex>(device));
                       }),
                       "Invalid device argument " + std::to_string(device));
  }
}

TEST_F(AdapterTest, ASnapshotTilesItsSegments) {
  std::vector<void*> kept;
  for (const std::size_t size : {std::size_t{500}, kMiB, 2 * kMiB, 30 * kMiB}) {
    kept.push_back(adapter().raw_alloc(size));
  }
  adapter().raw_delete(kept[1]);
  const auto snapshot = adapter().snapshot({0, 0}, true);
  EXPECT_FALSE(snapshot.device_traces.empty());
  EXPECT_FALSE(snapshot.config_metadata.expandable_segments);
  const auto stats = adapter().getDeviceStats(0);
  std::size_t reserved = 0;
  std::size_t allocated = 0;
  std::size_t last = 0;
  for (const auto& segment : snapshot.segments) {
    EXPECT_GT(segment.address, last);
    last = segment.address;
    std::size_t in_blocks = 0;
    std::size_t in_allocated = 0;
    for (const auto& block : segment.blocks) {
      in_blocks += block.size;
      if (block.allocated) in_allocated += block.size;
    }
    EXPECT_EQ(in_blocks, segment.total_size);
    EXPECT_EQ(in_allocated, segment.allocated_size);
    EXPECT_EQ(segment.is_large, segment.total_size != 2 * kMiB);
    reserved += segment.total_size;
    allocated += segment.allocated_size;
  }
  EXPECT_EQ(static_cast<std::int64_t>(reserved), stats.reserved_bytes[kAll].current);
  EXPECT_EQ(static_cast<std::int64_t>(allocated), stats.allocated_bytes[kAll].current);
  EXPECT_TRUE(adapter().snapshot({0, 7}, true).segments.empty());  // no private pools
  for (const std::size_t i : {0U, 2U, 3U}) adapter().raw_delete(kept[i]);
}

TEST_F(AdapterTest, WrongFreesAreErrorsAndTheRestStaysWhole) {
  void* data = adapter().raw_alloc(1000);
  int on_the_stack = 0;
  expect_starts_with(torch_error_of([&] { adapter().raw_delete(&on_the_stack); }),
                     "limbo[foreign_free]: ");
  expect_starts_with(torch_error_of([&] { adapter().raw_delete(static_cast<char*>(data) + 512); }),
                     "limbo[interior_free]: ");
  adapter().raw_delete(data);
  expect_starts_with(torch_error_of([&] { adapter().raw_delete(data); }), "limbo[double_free]: ");
  // A destructor cannot throw: the same wrong free only says so.
  ::testing::internal::CaptureStderr();
  adapter().raw_deleter()(data);
  EXPECT_NE(::testing::internal::GetCapturedStderr().find("limbo: freeing"), std::string::npos);
  allocator_in_use().check_invariants();
}

TEST_F(AdapterTest, TheSegmentOfABlock) {
  void* first = adapter().raw_alloc(1000);
  void* second = adapter().raw_alloc(1000);
  std::size_t size_bytes = 0;
  void* base = adapter().getBaseAllocation(first, &size_bytes);
  EXPECT_EQ(adapter().getBaseAllocation(second, nullptr), base);
  EXPECT_EQ(adapter().getBaseAllocation(static_cast<char*>(second) + 10, nullptr), base);
  EXPECT_EQ(size_bytes, 2 * kMiB);
  adapter().raw_delete(first);
  adapter().raw_delete(second);
  expect_starts_with(torch_error_of([&] { (void)adapter().getBaseAllocation(first, nullptr); }),
                     "invalid device pointer: ");
}

TEST_F(AdapterTest, OutOfMemoryIsTorchsAndObserversHear) {
  static int calls = 0;
  static std::size_t heard_bytes = 0;
  static std::size_t heard_total = 0;
  adapter().attachOutOfMemoryObserver(
      [](std::int64_t device, std::size_t size_bytes, std::size_t total, std::size_t free) {
        ++calls;
        heard_bytes = size_bytes;
        heard_total = total;
        EXPECT_EQ(device, 0);
        EXPECT_GT(free, 0U);
      });
  const auto text_of = [](std::size_t size_bytes) -> std::string {
    try {
      (void)adapter().raw_alloc(size_bytes);
    } catch (const c10::OutOfMemoryError& error) {
      return error.what_without_backtrace();
    }
    return "nothing was thrown";
  };
  const std::size_t wanted = std::size_t{800'000'000} << 30U;
  expect_starts_with(text_of(wanted),
                     "CUDA out of memory. Tried to allocate 800000000.00 GiB. GPU 0 has");
  EXPECT_EQ(calls, 1);
  EXPECT_EQ(heard_bytes, wanted);
  EXPECT_EQ(heard_total, adapter().getMemoryInfo(0).second);
  EXPECT_EQ(text_of(std::size_t{1} << 60U),
            "CUDA out of memory. Tried to allocate more than 1EB memory.");
  EXPECT_EQ(text_of(std::numeric_limits<std::size_t>::max()),
            "CUDA out of memory. Tried to allocate more than 1EB memory.");
  EXPECT_EQ(adapter().getDeviceStats(0).num_ooms, 1);
  // A small request fails for want of a segment; under a fraction, that is what there is.
  adapter().setMemoryFraction(0, 0);
  expect_starts_with(text_of(1000), "CUDA out of memory. Tried to allocate 1000 bytes. GPU 0 has");
  EXPECT_EQ(calls, 2);
  EXPECT_EQ(heard_bytes, 2 * kMiB);
  EXPECT_EQ(heard_total, 1U);
  adapter().setMemoryFraction(1, 0);
  void* data = adapter().raw_alloc(kMiB);
  EXPECT_NE(data, nullptr);
  adapter().raw_delete(data);
}

TEST_F(AdapterTest, TheMemoryFractionIsALimit) {
  EXPECT_EQ(adapter().getMemoryFraction(0), 1.0);
  for (const double wrong : {-0.1, 1.1, std::numeric_limits<double>::quiet_NaN()}) {
    expect_starts_with(torch_error_of([&] { adapter().setMemoryFraction(wrong, 0); }),
                       "invalid fraction: ");
  }
  const std::size_t total = adapter().getMemoryInfo(0).second;
  adapter().setMemoryFraction(0.5, 0);
  EXPECT_EQ(adapter().getMemoryFraction(0), 0.5);
  void* data = adapter().raw_alloc(total / 2 - 4 * kMiB);
  EXPECT_THROW((void)adapter().raw_alloc(16 * kMiB), c10::OutOfMemoryError);
  adapter().raw_delete(data);
  adapter().setMemoryFraction(0, 0);
  adapter().emptyCache({0, 0});
  EXPECT_THROW((void)adapter().raw_alloc(1), c10::OutOfMemoryError);
  adapter().setMemoryFraction(1, 0);
  adapter().raw_delete(adapter().raw_alloc(1));
}

// torch sets the fraction of every device when CUDA starts, and asking for free memory makes a context.
TEST_F(AdapterTest, TheMemoryFractionAsksForNoFreeMemory) {
  auto& sim = dynamic_cast<SimDevice&>(process_device());
  const std::uint64_t before = sim.faults().calls(CallKind::kMemoryInfo);
  adapter().setMemoryFraction(0.5, 0);
  adapter().setMemoryFraction(1, 0);
  EXPECT_EQ(sim.faults().calls(CallKind::kMemoryInfo), before);
}

TEST_F(AdapterTest, WithCachingSwitchedOffNothingIsCounted) {
  void* cached = adapter().raw_alloc(1000);
  const auto before = adapter().getDeviceStats(0);
  adapter().enable(false);
  EXPECT_FALSE(adapter().isEnabled());
  void* uncached = adapter().raw_alloc(1000);
  {
    const c10::DataPtr data = adapter().allocate(5000);
    EXPECT_EQ(data.get_deleter(), adapter().raw_deleter());
  }
  EXPECT_EQ(adapter().getDeviceStats(0).requested_bytes[kAll].current,
            before.requested_bytes[kAll].current);
  EXPECT_FALSE(allocator_in_use().find(uncached).has_value());
  // Freed by whoever is there, in either mode.
  adapter().raw_delete(cached);
  adapter().enable(true);
  adapter().raw_delete(uncached);
  expect_starts_with(torch_error_of([&] { adapter().raw_delete(uncached); }),
                     "limbo[foreign_free]: ");
}

TEST_F(AdapterTest, ABlockThatAnotherStreamUsesWaits) {
  Device& device = allocator_in_use().device();
  const StreamRef side{0, device.create_stream(0)};
  SharedWords gate(device);
  device.wait_word(side, gate.word(0), 1);
  const c10::Stream stream(c10::Stream::UNSAFE, c10::Device(c10::kCUDA, 0),
                           std::bit_cast<c10::StreamId>(side.handle));
  const void* first = nullptr;
  {
    const c10::DataPtr by_stream = adapter().allocate(1000);
    const c10::DataPtr by_cuda_stream = adapter().allocate(1000);
    first = by_stream.get();
    adapter().recordStream(by_stream, stream);
    adapter().recordStream(by_cuda_stream, c10::cuda::CUDAStream(stream));
  }
  EXPECT_EQ(adapter().getDeviceStats(0).allocation[kAll].current, 0);
  EXPECT_EQ(adapter().getDeviceStats(0).active[kAll].current, 2);
  {
    const c10::DataPtr other = adapter().allocate(1000);
    EXPECT_NE(other.get(), first);
  }
  gate.store(0, 1);
  adapter().emptyCache({0, 0});  // waits for the events
  EXPECT_EQ(adapter().getDeviceStats(0).active[kAll].current, 0);

  int foreign = 0;
  EXPECT_FALSE(Adapter::record_use(c10::DataPtr(&foreign, c10::Device(c10::kCUDA, 0)), side));
  EXPECT_FALSE(Adapter::record_use(c10::DataPtr(nullptr, c10::Device(c10::kCUDA, 0)), side));
  device.destroy_stream(side);
}

// Runs `child` in a fork of this process and returns its exit status.
template <typename Child>
int in_fork(Child&& child) {
  const pid_t pid = ::fork();
  if (pid == 0) ::_exit(std::forward<Child>(child)());
  int status = 0;
  EXPECT_EQ(::waitpid(pid, &status, 0), pid);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

TEST_F(AdapterTest, AForkChildOwnsNothing) {
  void* data = adapter().raw_alloc(1000);
  const int status = in_fork([&] {
    adapter().raw_delete(data);  // nothing, without a word
    Adapter::delete_block(data);
    if (adapter().record_use(c10::DataPtr(data, c10::Device(c10::kCUDA, 0)), {})) return 1;
    const std::string text = torch_error_of([] { (void)adapter().raw_alloc(1000); });
    return text.starts_with("limbo[forked_child]: ") ? 0 : 2;
  });
  EXPECT_EQ(status, 0);
  EXPECT_EQ(adapter().getDeviceStats(0).allocation[kAll].current, 1);
  adapter().raw_delete(data);
}

TEST_F(AdapterTest, AllocationsGoToTheThreadsStream) {
  Device& device = allocator_in_use().device();
  const StreamRef side{0, device.create_stream(0)};
  void* data = nullptr;
  std::thread([&] {
    set_simulated_stream(side);
    data = adapter().raw_alloc(1000);
  }).join();
  EXPECT_EQ(allocator_in_use().find(data)->stream, side);
  void* other = adapter().raw_alloc(1000);
  EXPECT_EQ(allocator_in_use().find(other)->stream, StreamRef{});
  adapter().raw_delete(data);
  adapter().raw_delete(other);
  adapter().emptyCache({0, 0});
  device.destroy_stream(side);
}

TEST_F(AdapterTest, DataIsCopied) {
  const at::Tensor from = sim_arange(1000);
  const at::Tensor to = sim_empty({1000});
  adapter().copy_data(to.mutable_data_ptr(), from.const_data_ptr(), from.nbytes());
  EXPECT_TRUE(sim_read(to).equal(sim_read(from)));
  const at::Tensor again = sim_empty({1000});
  EXPECT_EQ(adapter().memcpyAsync(again.mutable_data_ptr(), 0, from.const_data_ptr(), 0,
                                  from.nbytes(), nullptr, false),
            cudaSuccess);
  EXPECT_TRUE(sim_read(again).equal(sim_read(from)));
  adapter().enablePeerAccess(0, 0);
}

TEST_F(AdapterTest, TheLargestBlockThatCouldBeHad) {
  std::size_t largest = 0;
  adapter().cacheInfo(0, &largest);
  EXPECT_EQ(largest, adapter().getMemoryInfo(0).first);
  void* data = adapter().raw_alloc(30 * kMiB);
  adapter().raw_delete(data);
  largest = 1;
  adapter().cacheInfo(0, &largest);
  EXPECT_EQ(largest, 30 * kMiB);
}

TEST_F(AdapterTest, MetadataBelongsToTheThread) {
  adapter().setUserMetadata("step 3");
  EXPECT_EQ(adapter().getUserMetadata(), "step 3");
  std::thread([] { EXPECT_EQ(adapter().getUserMetadata(), ""); }).join();
  adapter().setUserMetadata("");
}

// What the profiler is told.
class Profile final : public c10::MemoryReportingInfoBase {
 public:
  void reportMemoryUsage(void* /*data*/, std::int64_t change, std::size_t allocated,
                         std::size_t reserved_now, c10::Device /*device*/) override {
    changes.push_back(change);
    totals.push_back(allocated);
    reserved.push_back(reserved_now);
  }
  void reportOutOfMemory(std::int64_t size, std::size_t allocated, std::size_t /*reserved*/,
                         c10::Device /*device*/) override {
    failures.push_back(size);
    totals.push_back(allocated);
  }
  bool memoryProfilingEnabled() const override { return true; }
  std::vector<std::int64_t> changes;
  std::vector<std::size_t> totals;
  std::vector<std::size_t> reserved;
  std::vector<std::int64_t> failures;
};

TEST_F(AdapterTest, TheProfilerIsTold) {
  const auto profile = std::make_shared<Profile>();
  {
    const c10::DebugInfoGuard guard(c10::DebugInfoKind::PROFILER_STATE, profile);
    void* first = adapter().raw_alloc(1000);
    adapter().raw_delete(adapter().raw_alloc(3 * kMiB));
    adapter().raw_delete(adapter().raw_alloc(3 * kMiB));  // a hit
    EXPECT_THROW((void)adapter().raw_alloc(std::size_t{1} << 50U), c10::OutOfMemoryError);
    adapter().raw_delete(first);
  }
  adapter().raw_delete(adapter().raw_alloc(1000));
  constexpr std::int64_t kThreeMiB = 3 * static_cast<std::int64_t>(kMiB);
  EXPECT_EQ(profile->changes,
            (std::vector<std::int64_t>{1024, kThreeMiB, -kThreeMiB, kThreeMiB, -kThreeMiB, -1024}));
  EXPECT_EQ(profile->totals, (std::vector<std::size_t>{1024, 1024 + 3 * kMiB, 1024, 1024 + 3 * kMiB,
                                                       1024, 1024, 0}));
  EXPECT_EQ(profile->failures, std::vector<std::int64_t>{std::int64_t{1} << 50U});
  EXPECT_EQ(profile->reserved.at(0), 2 * kMiB);
  EXPECT_EQ(profile->reserved.at(1), 22 * kMiB);
  EXPECT_EQ(profile->reserved.at(5), 2 * kMiB);  // the failure gave back what was unused
}

int callback_runs = 0;

class CountingCallback final : public c10::FreeMemoryCallback {
 public:
  bool Execute() override {
    ++callback_runs;
    return false;
  }
};

TEST_F(AdapterTest, AMissRunsTheCallbacksOfOthersAndNotItsOwn) {
  auto* registry = c10::FreeCudaMemoryCallbacksRegistry();
  EXPECT_TRUE(registry->Has("limbo_collect"));
  EXPECT_FALSE(register_collector());  // as a second copy of the library would try
  registry->Register("count_for_tests", [] { return std::make_unique<CountingCallback>(); });
  callback_runs = 0;
  void* data = adapter().raw_alloc(kMiB);  // nothing is cached: a miss
  EXPECT_EQ(callback_runs, 1);
  adapter().raw_delete(data);
  adapter().raw_delete(adapter().raw_alloc(kMiB));  // a hit
  EXPECT_EQ(callback_runs, 1);
  EXPECT_FALSE(registry->Create("limbo_collect")->Execute());  // nothing was lent
}

// Neither the registry nor the core collects a second time.
TEST_F(AdapterTest, AMissCollectsOnce) {
  void* lent = adapter().raw_alloc(kMiB);
  Sharing& sharing = sharing_in_use();
  sharing.withdraw(sharing.share(lent, kMiB, {}, {}));
  adapter().raw_delete(lent);
  ASSERT_TRUE(eventually([&] { return sharing.stats().exports_open == 0; }));
  set_fail_points("collect.after_note=delay:0");  // counts the passes; nobody else collects now
  void* data = adapter().raw_alloc(40 * kMiB);
  EXPECT_EQ(fail_point_passed("collect.after_note"), 1U);
  set_fail_points("");
  adapter().raw_delete(data);
}

TEST_F(AdapterTest, WhatOrdinaryProgramsCallIsNoError) {
  EXPECT_TRUE(adapter().getExpandableSegmentSizes(0).empty());
  adapter().emptyCache({0, 1});
  EXPECT_EQ(adapter().name(), "limbo");
}

}  // namespace
}  // namespace limbo::testing
