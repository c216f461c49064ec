// The slow path: callbacks, limits, memory back to the driver, out-of-memory, failing drivers.
#include "allocator/options.h"
#include "tests/unit/allocator_support.h"

namespace limbo::testing {
namespace {

class AllocatorMemory : public AllocatorTest {
 protected:
  AllocatorMemory() : AllocatorTest(1, 64) {}
};

TEST_F(AllocatorMemory, MoreThanThereIsIsAnErrorAndNothingElse) {
  std::byte* kept = allocate(4 * kMiB);
  const std::string text = out_of_memory([&] { static_cast<void>(allocate(100 * kMiB)); });
  EXPECT_TRUE(contains(text,
                       "CUDA out of memory. Tried to allocate 100.00 MiB. GPU 0 has a total "
                       "capacity of 64.00 MiB of which 44.00 MiB is free."))
      << text;
  EXPECT_TRUE(contains(text,
                       "Of the allocated memory 4.00 MiB is allocated by PyTorch, and 16.00 MiB "
                       "is reserved by PyTorch but unallocated."))
      << text;
  const DeviceStats stats = allocator_.stats(0);
  EXPECT_EQ(stats.num_ooms, 1);
  EXPECT_EQ(stats.num_alloc_retries, 1);
  std::byte* small = allocate(kMiB);
  EXPECT_NE(small, nullptr);
  allocator_.free(small);
  allocator_.free(kept);
}

TEST_F(AllocatorMemory, TheTextNamesTheProcessesThatHaveMemoryOfTheDevice) {
  std::byte* kept = allocate(4 * kMiB);
  const std::unique_ptr<SimDevice> another = make_sim();  // as another process
  void* theirs = another->try_allocate(0, 6 * kMiB);
  EXPECT_PRED2(contains, out_of_memory([&] { static_cast<void>(allocate(100 * kMiB)); }),
               "is free. Including non-PyTorch memory, this process has 20.00 MiB memory in use. "
               "Process " +
                   std::to_string(::getpid()) + " has 6.00 MiB memory in use. Of the allocated");
  another->free(0, theirs);
  allocator_.free(kept);
}

TEST_F(AllocatorMemory, AbsurdSizesAreNamedAsTorchNamesThem) {
  const std::size_t gib = std::size_t{1} << 30;
  EXPECT_TRUE(contains(out_of_memory([&] { static_cast<void>(allocate(800'000'000 * gib)); }),
                       "Tried to allocate 800000000.00 GiB. GPU 0"));
  sim_->reset_calls();
  for (const std::size_t size : {std::size_t{1} << 60, ~std::size_t{0}}) {
    EXPECT_TRUE(contains(out_of_memory([&] { static_cast<void>(allocate(size)); }),
                         "CUDA out of memory. Tried to allocate more than 1EB memory."));
  }
  EXPECT_EQ(sim_->calls(CallKind::kAllocate), 0U);
}

TEST_F(AllocatorMemory, FreeSegmentsAreReturnedBeforeOutOfMemory) {
  std::byte* first = allocate(24 * kMiB);
  std::byte* second = allocate(24 * kMiB);
  allocator_.free(first);
  allocator_.free(second);
  EXPECT_EQ(reserved(), static_cast<std::int64_t>(48 * kMiB));
  std::byte* large = allocate(60 * kMiB);
  EXPECT_EQ(reserved(), static_cast<std::int64_t>(60 * kMiB));
  EXPECT_EQ(allocator_.stats(0).num_alloc_retries, 1);
  EXPECT_EQ(allocator_.stats(0).num_device_free, 2);
  allocator_.free(large);
}

TEST_F(AllocatorMemory, BlocksThatWaitForEventsAreWaitedForBeforeOutOfMemory) {
  const StreamRef user = stream();
  std::byte* data = allocate(40 * kMiB);
  EXPECT_TRUE(allocator_.record_stream(data, user));
  sim_->enqueue_kernel(user, milliseconds(50), nullptr, 0, 0);
  allocator_.free(data);
  EXPECT_EQ(allocate(40 * kMiB), data);  // searched again after the wait: nothing was returned
  EXPECT_EQ(allocator_.stats(0).num_device_free, 0);
  EXPECT_EQ(allocator_.stats(0).num_sync_all_streams, 1);
  allocator_.free(data);
}

TEST_F(AllocatorMemory, CachedBlocksOfOtherSizesAreMergedBeforeASegmentIsTaken) {
  std::vector<std::byte*> blocks;
  for (int count = 0; count < 4096; ++count) blocks.push_back(allocate(512));
  for (std::byte* data : blocks) allocator_.free(data);  // caches and depot hold them all
  std::byte* data = allocate(kMiB);
  EXPECT_EQ(reserved(), static_cast<std::int64_t>(2 * kMiB));
  allocator_.free(data);
}

TEST_F(AllocatorMemory, CallbacksRunInOrderOnAMissWithNoLockHeld) {
  std::vector<int> order;
  std::byte* held = allocate(40 * kMiB);
  allocator_.add_free_memory_callback([&] {
    order.push_back(1);
    return false;
  });
  allocator_.add_free_memory_callback([&] {
    order.push_back(2);
    if (held == nullptr) return false;
    static_cast<void>(allocator_.stats(0));  // would deadlock under a lock
    allocator_.free(held);
    held = nullptr;
    return true;
  });
  const std::uint64_t calls = sim_->calls(CallKind::kAllocate);
  std::byte* data = allocate(40 * kMiB);
  EXPECT_EQ(order, (std::vector<int>{1, 2}));
  EXPECT_EQ(sim_->calls(CallKind::kAllocate), calls);  // what the callback freed was found
  allocator_.free(data);
  order.clear();
  allocator_.free(allocate(40 * kMiB));
  EXPECT_TRUE(order.empty());  // a hit
}

TEST_F(AllocatorMemory, ACallbackThatAllocatesDoesNotRecurse) {
  int calls = 0;
  allocator_.add_free_memory_callback([&] {
    ++calls;
    allocator_.free(allocate(24 * kMiB));
    return true;
  });
  std::byte* data = allocate(3 * kMiB);
  EXPECT_EQ(calls, 1);
  allocator_.free(data);
}

TEST_F(AllocatorMemory, ACallbackThatThrowsLosesNothing) {
  bool armed = true;
  allocator_.add_free_memory_callback([&]() -> bool {
    if (armed) throw Error(ErrorCode::kInternal, "a callback failed");
    return false;
  });
  EXPECT_ERROR(static_cast<void>(allocate(512)), kInternal);
  armed = false;
  int runs = 0;
  allocator_.add_free_memory_callback([&] { return ++runs > 0; });
  allocator_.free(allocate(512));
  EXPECT_EQ(runs, 1);  // callbacks still run: the depth was put right
}

TEST_F(AllocatorMemory, TheLimitCountsReservedBytes) {
  allocator_.set_limit_bytes(0, 30 * kMiB);
  EXPECT_EQ(allocator_.limit_bytes(0), 30 * kMiB);
  std::byte* first = allocate(12 * kMiB);
  std::byte* second = allocate(12 * kMiB);
  std::byte* small = allocate(512);
  const std::string text = out_of_memory([&] { static_cast<void>(allocate(11 * kMiB)); });
  EXPECT_TRUE(contains(text, "memory in use. 30.00 MiB allowed; Of the allocated memory ")) << text;
  allocator_.free(first);
  allocator_.free(second);
  std::byte* other = allocate(26 * kMiB);  // the unused segments go back first
  EXPECT_EQ(reserved(), static_cast<std::int64_t>(28 * kMiB));
  allocator_.set_limit_bytes(0, 0);
  std::byte* more = allocate(30 * kMiB);
  for (std::byte* one : {small, other, more}) allocator_.free(one);
}

// ---- policy -----------------------------------------------------------------------------------

TEST_F(AllocatorMemory, ALargeBlockIsNotCutPastTheLimit) {
  AllocationPolicy policy;
  policy.max_split_size_bytes = 24 * kMiB;
  allocator_.set_policy(policy);
  std::byte* large = allocate(40 * kMiB);
  allocator_.free(large);
  std::byte* small = allocate(3 * kMiB);
  EXPECT_EQ(reserved(), static_cast<std::int64_t>(60 * kMiB));  // from a segment of its own
  EXPECT_EQ(allocate(26 * kMiB), large);
  EXPECT_EQ(allocator_.find(large)->size_bytes, 40 * kMiB);  // whole, at most 20 MiB too large
  allocator_.free(small);
  allocator_.free(large);
}

TEST_F(AllocatorMemory, AnUncutBlockIsNotWastedOnMuchSmallerRequests) {
  AllocationPolicy policy;
  policy.max_split_size_bytes = 21 * kMiB;
  allocator_.set_policy(policy);
  std::byte* large = allocate(44 * kMiB);
  allocator_.free(large);
  std::byte* other = allocate(22 * kMiB);  // 22 MiB would be wasted: the large one goes back
  EXPECT_EQ(reserved(), static_cast<std::int64_t>(22 * kMiB));
  // Below the limit, in a segment that is rounded up to more than it.
  std::byte* between = allocate(21 * kMiB - 512);
  for (std::byte* data : {other, between}) allocator_.free(data);
}

TEST_F(AllocatorMemory, GarbageIsCollectedWithAThresholdAlone) {
  AllocationPolicy policy;
  policy.garbage_collection_threshold = 0.5;  // of 64 MiB: no limit is set
  allocator_.set_policy(policy);
  const StreamRef other = stream();
  std::byte* oldest = allocate(20 * kMiB);
  std::byte* newer = allocate(14 * kMiB);
  allocator_.free(oldest);
  allocator_.empty_cache(0);
  oldest = allocate(20 * kMiB);
  allocator_.free(oldest);
  static_cast<void>(allocator_.largest_free_block_bytes(0));
  std::byte* small = allocate(512, other);  // 34 MiB: over the threshold
  EXPECT_EQ(reserved(), static_cast<std::int64_t>(16 * kMiB));
  allocator_.free(newer);
  std::byte* again = allocate(512, {0, nullptr});  // 16 MiB: below it, nothing is collected
  EXPECT_EQ(reserved(), static_cast<std::int64_t>(18 * kMiB));
  EXPECT_EQ(allocator_.stats(0).num_alloc_retries, 0);
  allocator_.free(small);
  allocator_.free(again);
}

TEST_F(AllocatorMemory, GarbageGoesOldestFirstAndOnlyAsFarAsNeeded) {
  std::vector<std::byte*> blocks;
  for (int count = 0; count < 4; ++count) blocks.push_back(allocate(12 * kMiB));
  std::vector<std::uint64_t> pieces;
  for (std::byte* data : blocks) pieces.push_back(allocator_.find(data)->piece_id);
  FakeLender lender;
  allocator_.set_lender(&lender);
  for (const std::size_t index : {2U, 0U, 3U, 1U}) {
    allocator_.free(blocks[index]);
    static_cast<void>(allocator_.largest_free_block_bytes(0));
    allocator_.free(allocate(512));  // the clock goes on
    static_cast<void>(allocator_.largest_free_block_bytes(0));
  }
  AllocationPolicy policy;
  policy.garbage_collection_threshold = 0.5;
  allocator_.set_policy(policy);
  allocator_.free(allocate(512, stream()));  // 50 of 64 MiB: two have to go
  EXPECT_EQ(lender.returned, (std::vector<std::uint64_t>{pieces[2], pieces[0]}));
  allocator_.set_lender(nullptr);
}

TEST_F(AllocatorMemory, PoliciesOutOfRangeAreRefused) {
  for (const AllocationPolicy& policy :
       {AllocationPolicy{20 * kMiB, 20 * kMiB, 0}, AllocationPolicy{21 * kMiB, 19 * kMiB, 0},
        AllocationPolicy{21 * kMiB, 20 * kMiB, 1}, AllocationPolicy{21 * kMiB, 20 * kMiB, -0.5},
        AllocationPolicy{21 * kMiB, 20 * kMiB, 0, 10 * kMiB},
        AllocationPolicy{30 * kMiB, 30 * kMiB, 0, 21 * kMiB},
        AllocationPolicy{30 * kMiB, 30 * kMiB, 0, 30 * kMiB},
        AllocationPolicy{21 * kMiB, 20 * kMiB, 0, 20 * kMiB, {3}}}) {
    EXPECT_ERROR(allocator_.set_policy(policy), kBadArgument);
  }
}

// ---- pieces and the lender --------------------------------------------------------------------

class AllocatorLending : public AllocatorTest {
 protected:
  AllocatorLending() : AllocatorTest(1, 64) { allocator_.set_lender(&lender_); }
  void TearDown() override {
    lender_.on_may_return = {};
    AllocatorTest::TearDown();
  }
  FakeLender lender_;
};

TEST_F(AllocatorLending, APieceIsReturnedOnlyIfNobodyMapsIt) {
  std::byte* data = allocate(24 * kMiB);
  const std::uint64_t piece = allocator_.find(data)->piece_id;
  allocator_.free(data);
  lender_.on_may_return = [](std::uint64_t) { return false; };
  allocator_.empty_cache();
  EXPECT_EQ(lender_.asked, std::vector<std::uint64_t>{piece});
  EXPECT_TRUE(lender_.returned.empty());
  EXPECT_EQ(reserved(), static_cast<std::int64_t>(24 * kMiB));
  EXPECT_EQ(allocator_.stats(0).held_for_readers_bytes, static_cast<std::int64_t>(24 * kMiB));
  allocator_.check_invariants();
  EXPECT_EQ(allocate(24 * kMiB), data);  // it is still there for this process
  EXPECT_EQ(allocator_.stats(0).held_for_readers_bytes, 0);
  allocator_.free(data);
  lender_.on_may_return = {};
  allocator_.empty_cache();
  EXPECT_EQ(lender_.returned, std::vector<std::uint64_t>{piece});
  EXPECT_EQ(reserved(), 0);
}

TEST_F(AllocatorLending, APieceWithAPinIsNotAskedFor) {
  std::byte* data = allocate(24 * kMiB);
  const BlockView pinned = allocator_.pin(data);
  allocator_.free(data);
  allocator_.empty_cache();
  EXPECT_TRUE(lender_.asked.empty());
  EXPECT_EQ(reserved(), static_cast<std::int64_t>(24 * kMiB));
  EXPECT_EQ(drain_let_go(allocator_), 1);
  allocator_.unpin(pinned.block);
}

TEST_F(AllocatorLending, BlocksOfAPieceThatIsAskedForAreNotHandedOut) {
  std::byte* data = allocate(24 * kMiB);
  allocator_.free(data);
  std::byte* meanwhile = nullptr;
  lender_.on_may_return = [&](std::uint64_t) {
    if (meanwhile == nullptr) meanwhile = allocate(24 * kMiB);
    return false;
  };
  allocator_.empty_cache();
  EXPECT_NE(meanwhile, nullptr);
  EXPECT_NE(meanwhile, data);
  allocator_.free(meanwhile);
}

TEST_F(AllocatorLending, AMissCollectsFirst) {
  std::byte* data = allocate(24 * kMiB);
  const BlockView pinned = allocator_.pin(data);
  allocator_.free(data);
  lender_.on_collect = [&] {
    if (drain_let_go(allocator_) == 0) return false;
    allocator_.unpin(pinned.block);
    return true;
  };
  EXPECT_EQ(allocate(24 * kMiB), data);
  EXPECT_EQ(sim_->calls(CallKind::kAllocate), 1U);
  allocator_.free(data);
}

TEST_F(AllocatorLending, ReadersAreAskedToUnmapBeforeOutOfMemory) {
  std::byte* data = allocate(40 * kMiB);
  allocator_.free(data);
  bool mapped = true;
  lender_.on_may_return = [&](std::uint64_t) { return !mapped; };
  lender_.on_unmap_wait = [&] {
    mapped = false;
    return true;
  };
  std::byte* other = allocate(44 * kMiB);
  EXPECT_EQ(lender_.unmap_waits, 1);
  EXPECT_EQ(lender_.thorough_collects, 0);
  EXPECT_EQ(lender_.returned.size(), 1U);
  allocator_.free(other);
}

TEST_F(AllocatorLending, TheLastLookIsThorough) {
  std::byte* data = allocate(40 * kMiB);
  const BlockView pinned = allocator_.pin(data);
  allocator_.free(data);
  lender_.on_collect_thoroughly = [&] {
    EXPECT_EQ(drain_let_go(allocator_), 1);
    allocator_.unpin(pinned.block);
    return true;
  };
  std::byte* other = allocate(44 * kMiB);
  EXPECT_EQ(lender_.thorough_collects, 1);
  allocator_.free(other);
}

TEST_F(AllocatorLending, OutOfMemorySaysWhoHoldsWhat) {
  lender_.holders = "Process 4711 holds 24.00 MiB in 1 block.";
  std::byte* lent = allocate(24 * kMiB);
  const BlockView pinned = allocator_.pin(lent);
  allocator_.free(lent);
  std::byte* mapped = allocate(12 * kMiB);
  allocator_.free(mapped);
  lender_.on_may_return = [](std::uint64_t) { return false; };
  try {
    static_cast<void>(allocate(40 * kMiB));
    ADD_FAILURE() << "no error";
  } catch (const OutOfMemory& failure) {
    const std::string text = failure.what();
    EXPECT_TRUE(contains(text, "24.00 MiB in 1 block(s) is freed and still lent")) << text;
    EXPECT_TRUE(contains(text, "12.00 MiB is free but cannot be returned")) << text;
    EXPECT_TRUE(contains(text, lender_.holders)) << text;
    EXPECT_EQ(failure.device, 0);
    EXPECT_EQ(failure.requested_bytes, 40 * kMiB);
    EXPECT_EQ(failure.holders, lender_.holders);
    EXPECT_EQ(failure.stats.limbo_blocks, 1);
  }
  EXPECT_GE(lender_.unmap_waits, 1);
  EXPECT_EQ(drain_let_go(allocator_), 1);
  allocator_.unpin(pinned.block);
}

// ---- failing drivers --------------------------------------------------------------------------

TEST_F(AllocatorMemory, AFailingAllocationIsReportedAndTheNextOneWorks) {
  sim_->faults().add("allocate:1=fail");
  EXPECT_ERROR(static_cast<void>(allocate(512)), kDeviceError);
  EXPECT_EQ(reserved(), 0);
  allocator_.check_invariants();
  allocator_.set_limit_bytes(0, 2 * kMiB);  // what failed is not counted
  allocator_.free(allocate(512));
}

TEST_F(AllocatorMemory, AFullDeviceIsTriedAgainAfterMakingRoom) {
  sim_->faults().add("allocate:1=full");
  allocator_.free(allocate(512));
  EXPECT_EQ(allocator_.stats(0).num_alloc_retries, 1);
  EXPECT_EQ(allocator_.stats(0).num_ooms, 0);
}

TEST_F(AllocatorMemory, AFailingReturnKeepsTheSegment) {
  std::byte* data = allocate(24 * kMiB);
  allocator_.free(data);
  sim_->faults().add("free:1=fail");
  EXPECT_ERROR(allocator_.empty_cache(), kDeviceError);
  allocator_.check_invariants();
  EXPECT_EQ(reserved(), static_cast<std::int64_t>(24 * kMiB));
  EXPECT_EQ(allocate(24 * kMiB), data);
  EXPECT_EQ(allocator_.find(data + 5)->data, data);
  allocator_.free(data);
}

// ---- options ----------------------------------------------------------------------------------

TEST_F(AllocatorMemory, WithoutThreadCachesEverythingIsCentral) {
  set_option("thread_cache_bytes", 0);
  Allocator plain(*sim_);
  set_option("thread_cache_bytes", 256 << 20);
  void* data = plain.allocate(4096, home_);
  plain.free(data);
  EXPECT_EQ(plain.allocate(4096, home_), data);
  plain.check_invariants();
  plain.free(data);
  EXPECT_ERROR(plain.free(data), kDoubleFree);
  EXPECT_EQ(plain.stats(0).allocated_bytes[kAllSizes].peak, 4096);
  EXPECT_ERROR(set_option("thread_cache_bytes", -1), kUnknownOption);
}

}  // namespace
}  // namespace limbo::testing
