// Private pools: what is allocated into them, what stays with them, and when their memory goes.
#include <algorithm>
#include <atomic>
#include <future>
#include <set>
#include <thread>

#include "tests/support/eventually.h"
#include "tests/unit/pools_support.h"

namespace limbo::testing {
namespace {

TEST_F(Pools, TakeWhatTheFilterAcceptsAndNothingElse) {
  const StreamRef accepted = stream();
  allocator_.begin_allocate_to_pool(0, kPool,
                                    [&](StreamHandle handle) { return handle == accepted.handle; });
  std::byte* inside = allocate(4096, accepted);
  std::byte* outside = allocate(4096);
  EXPECT_EQ(pool_of(inside), kPool);
  EXPECT_EQ(pool_of(outside), PoolId{});
  allocator_.end_allocate_to_pool(0, kPool);
  std::byte* after = allocate(4096, accepted);
  EXPECT_EQ(pool_of(after), PoolId{});
  EXPECT_EQ(segments_of(kPool), 1U);
  EXPECT_EQ(segments_of(PoolId{}), 2U);
  for (std::byte* data : {inside, outside, after}) allocator_.free(data);
  allocator_.release_pool(0, kPool);
}

TEST_F(Pools, TheOneBegunLastTakesIt) {
  begin(kPool);
  std::byte* first = allocate(20 * kMiB);
  begin(kOther);
  std::byte* inner = allocate(20 * kMiB);
  end_and_release(kOther);
  std::byte* second = allocate(20 * kMiB);
  end_and_release(kPool);
  EXPECT_EQ(pool_of(first), kPool);
  EXPECT_EQ(pool_of(inner), kOther);
  EXPECT_EQ(pool_of(second), kPool);
  for (std::byte* data : {first, inner, second}) allocator_.free(data);
}

TEST_F(Pools, BlocksOfOnePoolAreNeverGivenToAnother) {
  std::byte* plain = allocate(4096);
  allocator_.free(plain);  // cached by this thread
  allocator_.retain_pool(0, kPool);
  std::byte* inside = allocate_in(kPool, 4096);
  EXPECT_NE(inside, plain);
  allocator_.free(inside);
  EXPECT_EQ(allocate(4096), plain);
  EXPECT_EQ(allocate_in(kPool, 4096), inside);
  allocator_.check_invariants();
  allocator_.free(plain);
  allocator_.free(inside);
  allocator_.release_pool(0, kPool);
}

TEST_F(Pools, AMissOfOneLeavesTheCachesAlone) {
  const StreamRef accepted = stream();
  allocator_.free(allocate(4096));  // this thread has a cache from now on
  std::byte* plain = allocate(4096);
  allocator_.begin_allocate_to_pool(0, kPool,
                                    [&](StreamHandle handle) { return handle == accepted.handle; });
  allocator_.free(plain);  // cached by this thread, and so not merged
  const auto blocks_of = [&](PoolId pool) {
    std::size_t blocks = 0;
    for (const SegmentView& segment : allocator_.snapshot()) {
      if (segment.pool == pool) blocks += segment.blocks.size();
    }
    return blocks;
  };
  EXPECT_EQ(blocks_of(PoolId{}), 2U);
  std::byte* inside = allocate(4096, accepted);
  EXPECT_EQ(blocks_of(kPool), 2U);
  EXPECT_EQ(blocks_of(PoolId{}), 2U);
  end_and_release(kPool);
  allocator_.free(inside);
}

TEST_F(Pools, FreesMergeInsideThePool) {
  allocator_.retain_pool(0, kPool);
  std::vector<std::byte*> parts;
  for (int part = 0; part < 8; ++part) parts.push_back(allocate_in(kPool, 256 * 1024));
  EXPECT_EQ(segments_of(kPool), 1U);
  for (std::byte* part : parts) allocator_.free(part);
  const std::vector<SegmentView> seen = allocator_.snapshot(0, kPool);
  ASSERT_EQ(seen.size(), 1U);
  EXPECT_EQ(seen[0].blocks.size(), 1U);
  EXPECT_EQ(allocate_in(kPool, kMiB), seen[0].base);
  allocator_.free(seen[0].base);
  allocator_.release_pool(0, kPool);
}

TEST_F(Pools, CountTheirUses) {
  EXPECT_EQ(allocator_.pool_use_count(0, kPool), 0);
  allocator_.retain_pool(0, kPool);
  EXPECT_EQ(allocator_.pool_use_count(0, kPool), 1);
  begin(kPool);
  EXPECT_EQ(allocator_.pool_use_count(0, kPool), 2);
  allocator_.end_allocate_to_pool(0, kPool);
  EXPECT_EQ(allocator_.pool_use_count(0, kPool), 2);
  allocator_.release_pool(0, kPool);
  EXPECT_EQ(allocator_.pool_use_count(0, kPool), 1);
  allocator_.release_pool(0, kPool);
  EXPECT_EQ(allocator_.pool_use_count(0, kPool), 0);
  EXPECT_ERROR(allocator_.release_pool(0, kPool), kBadArgument);
}

TEST_F(Pools, KeepTheirMemoryWhileTheyAreUsed) {
  allocator_.retain_pool(0, kPool);
  allocator_.free(allocate_in(kPool, 4 * kMiB));
  allocator_.empty_cache();
  allocator_.empty_cache(0, kPool);
  EXPECT_EQ(segments_of(kPool), 1U);
  allocator_.release_pool(0, kPool);
  EXPECT_EQ(segments_of(kPool), 1U);  // until somebody asks
  allocator_.empty_cache(0, kPool);
  EXPECT_EQ(segments_of(kPool), 0U);
  EXPECT_EQ(sim_->balance().allocated, 0U);
}

TEST_F(Pools, EmptyingOneLeavesTheOthersAlone) {
  allocator_.free(allocate_in(kPool, 4 * kMiB));
  allocator_.free(allocate_in(kOther, 4 * kMiB));
  std::byte* plain = allocate(40 * kMiB);
  allocator_.free(plain);
  allocator_.empty_cache(0, kPool);
  EXPECT_EQ(segments_of(kPool), 0U);
  EXPECT_EQ(segments_of(kOther), 1U);
  EXPECT_EQ(segments_of(PoolId{}), 1U);
  allocator_.empty_cache(0, kNowhere);  // as torch asks every device
}

TEST_F(Pools, BlocksLiveOnAfterTheRelease) {
  std::byte* data = allocate_in(kPool, 4 * kMiB);  // no use is left
  allocator_.empty_cache(0, kPool);
  EXPECT_EQ(segments_of(kPool), 1U);
  EXPECT_EQ(allocator_.pool_live_allocations(0, kPool), std::vector<void*>{data});
  allocator_.free(data);
  EXPECT_EQ(segments_of(kPool), 1U);
  std::byte* plain = allocate(4 * kMiB);
  EXPECT_EQ(pool_of(plain), PoolId{});  // what was freed is still the pool's
  EXPECT_ERROR(allocator_.free(data), kDoubleFree);
  allocator_.empty_cache();
  EXPECT_EQ(segments_of(kPool), 0U);
  EXPECT_ERROR(static_cast<void>(allocator_.pool_live_allocations(0, kPool)), kBadArgument);
  allocator_.free(plain);
}

TEST_F(Pools, APoolThatWasReleasedCanBeUsedAgain) {
  std::byte* data = allocate_in(kPool, 4 * kMiB);
  std::byte* again = allocate_in(kPool, 4 * kMiB);
  EXPECT_EQ(segments_of(kPool), 1U);
  allocator_.free(data);
  allocator_.free(again);
}

TEST_F(Pools, WrongNamesAreRefused) {
  EXPECT_ERROR(allocator_.retain_pool(0, PoolId{}), kBadArgument);
  EXPECT_ERROR(begin(PoolId{}), kBadArgument);
  EXPECT_ERROR(allocator_.retain_pool(7, kPool), kBadArgument);
  EXPECT_ERROR(allocator_.release_pool(0, kNowhere), kBadArgument);
  EXPECT_ERROR(allocator_.end_allocate_to_pool(0, kNowhere), kBadArgument);
  EXPECT_ERROR(allocator_.set_use_on_oom(0, kNowhere, true), kBadArgument);
  EXPECT_ERROR(allocator_.set_no_split(0, kNowhere), kBadArgument);
  EXPECT_ERROR(static_cast<void>(allocator_.pool_live_allocations(0, kNowhere)), kBadArgument);
  EXPECT_ERROR(allocator_.begin_allocate_to_pool(0, kPool, nullptr), kBadArgument);
  EXPECT_TRUE(allocator_.snapshot(0, kNowhere).empty());
  // Nothing is left of any of it.
  allocator_.free(allocate(4096));
  sim_->reset_calls();
  std::byte* hit = allocate(4096);
  EXPECT_EQ(sim_->calls(CallKind::kAllocate), 0U);
  allocator_.free(hit);
}

TEST_F(Pools, OneRouteIntoAPoolAtATime) {
  begin(kPool);
  EXPECT_ERROR(begin(kPool), kBadArgument);
  EXPECT_EQ(allocator_.pool_use_count(0, kPool), 1);
  end_and_release(kPool);
  EXPECT_ERROR(allocator_.end_allocate_to_pool(0, kPool), kBadArgument);
}

TEST_F(Pools, AFilterThatThrowsLosesNothing) {
  allocator_.begin_allocate_to_pool(0, kPool, [](StreamHandle) -> bool {
    throw Error(ErrorCode::kDeviceError, "The driver cannot say what the stream captures.");
  });
  EXPECT_ERROR(static_cast<void>(allocate(4096)), kDeviceError);
  allocator_.check_invariants();
  end_and_release(kPool);
  allocator_.free(allocate(4096));
}

// Threads inside the filter of the next route into the same pool are none of its business.
TEST_F(Pools, TheEndWaitsForItsOwnFilterAlone) {
  std::atomic<int> asked{0};
  std::atomic<bool> leave_first{false};
  std::atomic<bool> leave_second{false};
  const auto filter_until = [&](std::atomic<bool>& leave) {
    return [&asked, &leave](StreamHandle) {
      ++asked;
      EXPECT_TRUE(eventually([&] { return leave.load(); }));
      return true;
    };
  };
  const auto allocate_and_free = [&] { allocator_.free(allocate(4096)); };
  allocator_.begin_allocate_to_pool(0, kPool, filter_until(leave_first));
  std::thread in_first(allocate_and_free);
  EXPECT_TRUE(eventually([&] { return asked == 1; }));
  auto ended = std::async(std::launch::async, [&] { allocator_.end_allocate_to_pool(0, kPool); });
  // Refused until the first route has gone.
  EXPECT_TRUE(eventually([&] {
    try {
      allocator_.begin_allocate_to_pool(0, kPool, filter_until(leave_second));
      return true;
    } catch (const Error&) {
      return false;
    }
  }));
  std::thread in_second(allocate_and_free);
  EXPECT_TRUE(eventually([&] { return asked == 2; }));
  leave_first = true;
  EXPECT_EQ(ended.wait_for(kPatience / 2), std::future_status::ready);
  leave_second = true;
  in_first.join();
  in_second.join();
  ended.get();
  allocator_.end_allocate_to_pool(0, kPool);
  allocator_.release_pool(0, kPool);
  allocator_.release_pool(0, kPool);
}

// What a filter refers to is its maker's, who may destroy it behind the end.
TEST_F(Pools, TheEndWaitsForWhoAsksTheFilter) {
  std::atomic<bool> asked{false};
  std::atomic<bool> go_on{false};
  std::atomic<bool> over{false};
  std::atomic<bool> asked_behind_the_end{false};
  allocator_.begin_allocate_to_pool(0, kPool, [&](StreamHandle) {
    asked = true;
    EXPECT_TRUE(eventually([&] { return go_on.load(); }));
    asked_behind_the_end = over.load();
    return true;
  });
  std::byte* data = nullptr;
  std::thread asking([&] { data = allocate(4096); });
  EXPECT_TRUE(eventually([&] { return asked.load(); }));
  auto ended = std::async(std::launch::async, [&] {
    allocator_.end_allocate_to_pool(0, kPool);
    over = true;
  });
  EXPECT_EQ(ended.wait_for(milliseconds(100)), std::future_status::timeout);
  go_on = true;
  asking.join();
  ended.get();
  EXPECT_FALSE(asked_behind_the_end);
  EXPECT_EQ(pool_of(data), PoolId{});  // the route had ended before the answer came
  allocator_.free(data);
  allocator_.release_pool(0, kPool);
}

TEST_F(Pools, EveryBlockIsASegmentWhereNothingIsSplit) {
  allocator_.retain_pool(0, kPool);
  allocator_.set_no_split(0, kPool);
  std::byte* first = allocate_in(kPool, 4 * kMiB);
  std::byte* second = allocate_in(kPool, 4 * kMiB);
  std::byte* small = allocate_in(kPool, 512);
  EXPECT_EQ(segments_of(kPool), 3U);
  for (const SegmentView& segment : allocator_.snapshot(0, kPool)) {
    EXPECT_EQ(segment.blocks.size(), 1U);
  }
  allocator_.free(first);
  EXPECT_EQ(allocate_in(kPool, 4 * kMiB), first);
  for (std::byte* data : {first, second, small}) allocator_.free(data);
  allocator_.release_pool(0, kPool);
}

TEST_F(Pools, CannotBeLent) {
  std::byte* data = allocate_in(kPool, 4096);
  try {
    static_cast<void>(allocator_.pin(data + 100));
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kNotLendable);
    EXPECT_NE(std::string(error.what()).find("private pool (0, 1)"), std::string::npos);
    EXPECT_NE(std::string(error.what()).find("clone()"), std::string::npos);
  }
  allocator_.free(data);
  EXPECT_EQ(active(), 0);
}

TEST_F(Pools, CountInTheDevicesNumbers) {
  std::byte* data = allocate_in(kPool, 3 * kMiB);
  const DeviceStats stats = allocator_.stats(0);
  EXPECT_EQ(stats.allocated_bytes[kLargeSizes].current, static_cast<std::int64_t>(3 * kMiB));
  EXPECT_EQ(stats.reserved_bytes[kLargeSizes].current, static_cast<std::int64_t>(20 * kMiB));
  EXPECT_EQ(stats.private_allocated_bytes, static_cast<std::int64_t>(3 * kMiB));
  EXPECT_EQ(stats.private_reserved_bytes, static_cast<std::int64_t>(20 * kMiB));
  allocator_.free(data);
  EXPECT_EQ(allocator_.stats(0).private_allocated_bytes, 0);
}

TEST_F(Pools, ThreadsAllocateIntoTheirOwnAtOnce) {
  constexpr int kThreads = 4;
  std::vector<std::thread> threads;
  std::atomic<int> wrong{0};
  for (int index = 0; index < kThreads; ++index) {
    threads.emplace_back([&, index] {
      const PoolId mine{1, static_cast<std::uint64_t>(index) + 1};
      allocator_.retain_pool(0, mine);
      const std::thread::id self = std::this_thread::get_id();
      for (int round = 0; round < 50; ++round) {
        allocator_.begin_allocate_to_pool(
            0, mine, [self](StreamHandle) { return std::this_thread::get_id() == self; });
        std::vector<std::byte*> held;
        for (int block = 1; block <= 8; ++block) {
          held.push_back(allocate(static_cast<std::size_t>(block) * 3000));
        }
        allocator_.empty_cache(0);  // does nothing to anybody
        const std::vector<void*> live = allocator_.pool_live_allocations(0, mine);
        if (std::set<void*>(live.begin(), live.end()) !=
            std::set<void*>(held.begin(), held.end())) {
          ++wrong;
        }
        end_and_release(mine);
        std::byte* outside = allocate(3000);
        for (std::byte* data : held) allocator_.free(data);
        allocator_.free(outside);
      }
      if (segments_of(mine) != 1) ++wrong;
      allocator_.release_pool(0, mine);
      allocator_.empty_cache(0, mine);
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
  for (int index = 0; index < kThreads; ++index) {
    allocator_.empty_cache(0, PoolId{1, static_cast<std::uint64_t>(index) + 1});
  }
  allocator_.check_invariants();
  EXPECT_EQ(allocator_.stats(0).private_reserved_bytes, 0);
}

}  // namespace
}  // namespace limbo::testing
