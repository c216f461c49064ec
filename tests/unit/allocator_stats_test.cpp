// Statistics and snapshots.
#include <array>
#include <atomic>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "allocator/thread_registry.h"
#include "tests/unit/allocator_support.h"

namespace limbo::testing {
namespace {

class AllocatorStats : public AllocatorTest {
 protected:
  [[nodiscard]] Stat stat(StatByKind DeviceStats::*which, std::size_t kind = kAllSizes) {
    return (allocator_.stats(0).*which)[kind];
  }
};

void expect_stat(const Stat& stat, std::int64_t current, std::int64_t peak, std::int64_t allocated,
                 std::int64_t freed) {
  EXPECT_EQ(stat.current, current);
  EXPECT_EQ(stat.peak, peak);
  EXPECT_EQ(stat.allocated, allocated);
  EXPECT_EQ(stat.freed, freed);
}

TEST_F(AllocatorStats, CountsByKind) {
  std::byte* small = allocate(1000);
  std::byte* large = allocate(3 * kMiB);
  allocator_.free(small);
  small = allocate(1001);  // from the cache
  expect_stat(stat(&DeviceStats::allocation), 2, 2, 3, 1);
  expect_stat(stat(&DeviceStats::allocation, kSmallSizes), 1, 1, 2, 1);
  expect_stat(stat(&DeviceStats::allocation, kLargeSizes), 1, 1, 1, 0);
  expect_stat(stat(&DeviceStats::allocated_bytes, kSmallSizes), 1024, 1024, 2048, 1024);
  expect_stat(stat(&DeviceStats::requested_bytes, kSmallSizes), 1001, 1001, 2001, 1000);
  expect_stat(stat(&DeviceStats::active), 2, 2, 3, 1);
  const auto mib = static_cast<std::int64_t>(kMiB);
  expect_stat(stat(&DeviceStats::active_bytes, kLargeSizes), 3 * mib, 3 * mib, 3 * mib, 0);
  expect_stat(stat(&DeviceStats::segment), 2, 2, 2, 0);
  expect_stat(stat(&DeviceStats::reserved_bytes), 22 * mib, 22 * mib, 22 * mib, 0);
  EXPECT_EQ(stat(&DeviceStats::inactive_split).current, 2);
  EXPECT_EQ(stat(&DeviceStats::inactive_split_bytes).current, 2 * mib - 1024 + 17 * mib);
  EXPECT_EQ(allocator_.stats(0).num_device_alloc, 2);
  allocator_.free(small);
  allocator_.free(large);
}

TEST_F(AllocatorStats, PeaksAreExactWithOneThread) {
  // Hits and misses in turn; the peak is kept by hand.
  std::vector<std::byte*> live;
  std::int64_t now = 0;
  std::int64_t peak = 0;
  std::uint32_t random = 12345;
  for (int step = 0; step < 20'000; ++step) {
    random = random * 1664525 + 1013904223;
    const std::size_t size = ((random >> 8) % 64 + 1) * 512;
    if ((random >> 30) != 0 && live.size() < 200) {
      live.push_back(allocate(size));
      now += static_cast<std::int64_t>(allocator_.find(live.back())->size_bytes);
    } else if (!live.empty()) {
      const std::size_t index = (random >> 4) % live.size();
      now -= static_cast<std::int64_t>(allocator_.find(live[index])->size_bytes);
      allocator_.free(live[index]);
      live[index] = live.back();
      live.pop_back();
    }
    peak = std::max(peak, now);
    if (step % 1000 == 999) {
      EXPECT_EQ(stat(&DeviceStats::allocated_bytes).current, now);
      EXPECT_EQ(stat(&DeviceStats::allocated_bytes).peak, peak);
      EXPECT_EQ(stat(&DeviceStats::active_bytes).peak, peak);
      if (step % 5000 == 4999) {
        allocator_.reset_peak_stats(0);
        peak = now;
        EXPECT_EQ(stat(&DeviceStats::allocated_bytes).peak, now);
      }
    }
  }
  for (std::byte* data : live) allocator_.free(data);
}

TEST_F(AllocatorStats, APeakInsideTheCacheIsSeen) {
  std::byte* first = allocate(512);
  std::byte* second = allocate(512);
  std::byte* third = allocate(512);
  for (std::byte* data : {first, second, third}) allocator_.free(data);
  allocator_.reset_peak_stats(0);
  EXPECT_EQ(stat(&DeviceStats::allocation).peak, 0);
  first = allocate(512);  // hits only
  second = allocate(512);
  allocator_.free(first);
  allocator_.free(second);
  EXPECT_EQ(stat(&DeviceStats::allocation).peak, 2);
  EXPECT_EQ(stat(&DeviceStats::allocated_bytes).peak, 1024);
  EXPECT_EQ(stat(&DeviceStats::inactive_split).peak, 4);  // three cached and the segment's rest
}

TEST_F(AllocatorStats, ResettingSumsKeepsTheLevel) {
  std::byte* data = allocate(4096);
  allocator_.free(data);
  data = allocate(4096);
  allocator_.reset_accumulated_stats(0);
  expect_stat(stat(&DeviceStats::allocation), 1, 1, 0, 0);
  EXPECT_EQ(allocator_.stats(0).num_device_alloc, 0);
  allocator_.free(data);
  expect_stat(stat(&DeviceStats::allocation), 0, 1, 0, 1);
}

TEST_F(AllocatorStats, AThreadsCountsOutliveIt) {
  std::byte* data = nullptr;
  std::thread([&] {
    for (int count = 0; count < 10; ++count) allocator_.free(allocate(1024));
    data = allocate(1024);
  }).join();
  expect_stat(stat(&DeviceStats::allocation), 1, 1, 11, 10);
  std::thread([&] { allocator_.free(data); }).join();
  expect_stat(stat(&DeviceStats::allocation), 0, 1, 11, 11);
  EXPECT_EQ(stat(&DeviceStats::inactive_split).current, 0);
}

TEST_F(AllocatorStats, SnapshotsTileTheSegmentsAndSumUp) {
  const StreamRef other = stream();
  std::byte* first = allocate(1000);
  std::byte* cached = allocate(2000);
  std::byte* large = allocate(5 * kMiB, other);
  allocator_.free(cached);
  const std::vector<SegmentView> segments = allocator_.snapshot(0);
  ASSERT_EQ(segments.size(), 2U);
  EXPECT_LT(segments[0].base, segments[1].base);
  const DeviceStats stats = allocator_.stats(0);
  std::int64_t allocated_sum = 0;
  std::int64_t requested_sum = 0;
  for (const SegmentView& segment : segments) {
    std::size_t sum = 0;
    for (const SegmentView::BlockState& block : segment.blocks) sum += block.size_bytes;
    EXPECT_EQ(sum, segment.size_bytes);
    EXPECT_EQ(segment.large, segment.stream == other);
    allocated_sum += static_cast<std::int64_t>(segment.allocated_bytes);
    requested_sum += static_cast<std::int64_t>(segment.requested_bytes);
  }
  EXPECT_EQ(allocated_sum, stats.allocated_bytes[kAllSizes].current);
  EXPECT_EQ(requested_sum, stats.requested_bytes[kAllSizes].current);
  allocator_.free(first);
  allocator_.free(large);
}

// ---- several devices --------------------------------------------------------------------------

class AllocatorDevices : public AllocatorTest {
 protected:
  static constexpr int kDevices = 4;
  AllocatorDevices() : AllocatorTest(kDevices, 256) {}
};

TEST_F(AllocatorDevices, EachHasItsOwnMemoryAndNumbers) {
  std::vector<std::byte*> blocks;
  for (int device = 0; device < kDevices; ++device) {
    blocks.push_back(allocate(4096U << device, {device, nullptr}));
  }
  for (int device = 0; device < kDevices; ++device) {
    const StreamRef home{device, nullptr};
    std::byte* data = blocks[static_cast<std::size_t>(device)];
    EXPECT_EQ(allocator_.find(data)->stream, home);
    EXPECT_EQ(allocator_.stats(device).allocated_bytes[kAllSizes].current, 4096 << device);
    EXPECT_EQ(allocator_.snapshot(device).size(), 1U);
  }
  EXPECT_EQ(allocator_.snapshot().size(), blocks.size());
  for (std::byte* data : blocks) allocator_.free(data);
  for (int device = 0; device < kDevices; ++device) {
    std::byte* data = allocate(4096U << device, {device, nullptr});
    EXPECT_EQ(data, blocks[static_cast<std::size_t>(device)]);
    allocator_.free(data);
  }
  for (int emptied = kDevices - 1; emptied >= 0; --emptied) {
    allocator_.empty_cache(emptied);
    for (int device = 0; device < kDevices; ++device) {
      EXPECT_EQ(allocator_.stats(device).reserved_bytes[kAllSizes].current != 0, device < emptied);
    }
  }
}

TEST_F(AllocatorDevices, LimitsAreEachDevicesOwn) {
  for (int device = 1; device < kDevices; ++device) {
    allocator_.set_limit_bytes(device, 4 * static_cast<std::size_t>(device) * kMiB);
  }
  for (int device = 1; device < kDevices; ++device) {
    const std::size_t limit_bytes = 4 * static_cast<std::size_t>(device) * kMiB;
    const StreamRef home{device, nullptr};
    allocator_.free(allocate(limit_bytes, home));
    const std::string text =
        out_of_memory([&] { static_cast<void>(allocate(limit_bytes + 2 * kMiB, home)); });
    EXPECT_TRUE(contains(text, "GPU " + std::to_string(device) + " has")) << text;
  }
  allocator_.free(allocate(20 * kMiB));
}

TEST_F(AllocatorDevices, ABlockWaitsForStreamsOfEveryDevice) {
  std::byte* data = allocate(4096);
  std::vector<SimHold> holds;
  for (int device = 0; device < kDevices; ++device) {
    const StreamRef user{device, sim_->create_stream(device)};
    EXPECT_TRUE(allocator_.record_stream(data, user));
    holds.push_back(sim_->hold_stream(user));
  }
  allocator_.free(data);
  std::vector<std::byte*> others;
  for (const SimHold& hold : holds) {
    others.push_back(allocate(4096));
    EXPECT_NE(others.back(), data);
    sim_->release_hold(hold);
  }
  sim_->wait_until_idle();
  EXPECT_EQ(allocate(4096), data);
  allocator_.free(data);
  for (std::byte* other : others) allocator_.free(other);
}

TEST_F(AllocatorDevices, ACallbackMayFreeMemoryOfOtherDevices) {
  std::vector<std::byte*> there;
  for (int device = 1; device < kDevices; ++device) {
    there.push_back(allocate(4096, {device, nullptr}));
  }
  allocator_.add_free_memory_callback([&] {
    for (std::byte* data : std::exchange(there, {})) allocator_.free(data);
    return true;
  });
  allocator_.free(allocate(4096));
  EXPECT_TRUE(there.empty());
}

// A block of one device never serves another, whichever thread freed it.
TEST_F(AllocatorDevices, BlocksStayOnTheirDeviceAcrossThreads) {
  constexpr int kRounds = 200;
  std::vector<std::thread> threads;
  std::array<std::atomic<std::byte*>, kDevices> exchange{};
  std::atomic<int> wrong{0};
  for (int index = 0; index < kDevices; ++index) {
    threads.emplace_back([&, index] {
      for (int round = 0; round < kRounds; ++round) {
        const StreamRef home{(index + round) % kDevices, nullptr};
        std::byte* data = allocate(512U << (round % 4), home);
        if (allocator_.find(data)->stream != home) ++wrong;
        auto& slot = exchange[static_cast<std::size_t>(round % kDevices)];
        allocator_.free(slot.exchange(data));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (auto& slot : exchange) allocator_.free(slot.exchange(nullptr));
  EXPECT_EQ(wrong, 0);
}

TEST_F(AllocatorStats, OversizeBlocksAndSegmentsAreCounted) {
  AllocationPolicy policy;
  policy.max_split_size_bytes = 30 * kMiB;
  std::byte* before = allocate(40 * kMiB);
  allocator_.set_policy(policy);
  std::byte* oversize = allocate(40 * kMiB);
  std::byte* small = allocate(25 * kMiB);
  expect_stat(allocator_.stats(0).oversize_allocations, 1, 1, 1, 0);
  expect_stat(allocator_.stats(0).oversize_segments, 1, 1, 1, 0);
  for (int round = 0; round < 3; ++round) {
    allocator_.free(oversize);
    expect_stat(allocator_.stats(0).oversize_allocations, 0, 1, 1 + round, 1 + round);
    oversize = allocate(40 * kMiB);
  }
  allocator_.free(before);  // was not one when it was handed out
  allocator_.free(small);
  expect_stat(allocator_.stats(0).oversize_allocations, 1, 1, 4, 3);
  allocator_.reset_accumulated_stats(0);
  expect_stat(allocator_.stats(0).oversize_allocations, 1, 1, 0, 0);
  allocator_.free(oversize);
  allocator_.reset_peak_stats(0);
  expect_stat(allocator_.stats(0).oversize_allocations, 0, 0, 0, 1);
  allocator_.empty_cache();
  expect_stat(allocator_.stats(0).oversize_segments, 0, 1, 0, 1);
}

TEST_F(AllocatorStats, SegmentsAreNumberedByTheThreadThatMadeThem) {
  std::vector<std::byte*> blocks;
  std::map<void*, std::int32_t> numbers;
  const auto work = [&] {
    for (int count = 0; count < 3; ++count) blocks.push_back(allocate(12 * kMiB));
  };
  std::thread(work).join();
  std::thread(work).join();
  for (const SegmentView& segment : allocator_.snapshot()) {
    numbers[segment.base] = segment.registration_counter;
  }
  std::vector<std::int32_t> in_order;
  for (std::byte* data : blocks) in_order.push_back(numbers.at(data));
  EXPECT_EQ(in_order, (std::vector<std::int32_t>{0, 1, 2, 0, 1, 2}));
  for (std::byte* data : blocks) allocator_.free(data);
}

TEST_F(AllocatorStats, TotalsAreThereWithoutStoppingAnybody) {
  std::byte* data = allocate(4096);
  allocator_.free(allocate(4096));
  std::thread([&] { allocator_.free(allocate(3 * kMiB)); }).join();
  std::byte* large = allocate(5 * kMiB);
  allocator_.free(large);
  large = allocate(5 * kMiB);  // a hit
  {
    const std::lock_guard nobody_is_stopped(thread_registry::mutex());
    const MemoryTotals totals = allocator_.totals(0);
    EXPECT_EQ(totals.allocated_bytes, static_cast<std::int64_t>(5 * kMiB + 4096));
    EXPECT_EQ(totals.reserved_bytes, static_cast<std::int64_t>(22 * kMiB));
  }
  EXPECT_EQ(allocator_.totals(0).allocated_bytes, allocated());
  EXPECT_ERROR(static_cast<void>(allocator_.totals(1)), kBadArgument);
  allocator_.free(large);
  allocator_.free(data);
}

TEST_F(AllocatorStats, TheLargestFreeBlockIsThatOfAnyPool) {
  constexpr PoolId kPool{0, 1};
  allocator_.free(allocate(30 * kMiB));
  EXPECT_EQ(allocator_.largest_free_block_bytes(0), 30 * kMiB);
  allocator_.begin_allocate_to_pool(0, kPool, [](StreamHandle) { return true; });
  allocator_.free(allocate(50 * kMiB));
  allocator_.end_allocate_to_pool(0, kPool);
  EXPECT_EQ(allocator_.largest_free_block_bytes(0), 50 * kMiB);
  allocator_.release_pool(0, kPool);
}

}  // namespace
}  // namespace limbo::testing
