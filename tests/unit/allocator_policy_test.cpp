// Which free memory serves a request, and what is tried before out-of-memory is reported.
#include <chrono>
#include <thread>
#include <vector>

#include "tests/unit/allocator_support.h"

namespace limbo::testing {
namespace {

class AllocatorPolicyTest : public AllocatorTest {
 protected:
  // Two neighbours of 6 MiB at the start of a segment, and a free segment that no cache holds.
  void make_choice() {
    left_ = allocate(6 * kMiB);
    right_ = allocate(6 * kMiB);
    ASSERT_EQ(right_, left_ + 6 * kMiB);
    allocator_.free(allocate(100 * kMiB));
  }

  std::byte* left_ = nullptr;
  std::byte* right_ = nullptr;
};

TEST_F(AllocatorPolicyTest, LargeBlocksInACacheAreMergedBeforeAFreeSegmentIsCut) {
  make_choice();
  allocator_.free(left_);
  allocator_.free(right_);
  std::byte* both = allocate(12 * kMiB);
  EXPECT_EQ(both, left_);
  allocator_.free(both);
}

TEST_F(AllocatorPolicyTest, SoAreThoseInOtherThreadsCaches) {
  make_choice();
  std::thread other([&] {
    allocator_.free(left_);
    allocator_.free(right_);
    // The other thread is still there when its blocks are wanted.
    std::byte* both = nullptr;
    std::thread([&] { both = allocate(12 * kMiB); }).join();
    EXPECT_EQ(both, left_);
    allocator_.free(both);
  });
  other.join();
}

TEST_F(AllocatorPolicyTest, ASmallRequestLeavesLargeBlocksInTheirCache) {
  make_choice();
  allocator_.free(left_);
  allocator_.free(allocate(4096));
  // Still a hit, so not merged with the free memory behind `right_`.
  EXPECT_EQ(allocate(6 * kMiB), left_);
  allocator_.free(left_);
  allocator_.free(right_);
}

TEST_F(AllocatorPolicyTest, AmongEqualBlocksTheOldestSegmentServes) {
  std::vector<std::byte*> blocks;
  for (int i = 0; i < 6; ++i) blocks.push_back(allocate(100 * kMiB));
  // Freed in another order than they were made in.
  for (const std::size_t i : {4U, 1U, 5U, 0U, 3U, 2U}) allocator_.free(blocks[i]);
  for (std::byte* block : blocks) EXPECT_EQ(allocate(100 * kMiB), block);
  for (std::byte* block : blocks) allocator_.free(block);
}

TEST_F(AllocatorPolicyTest, ASegmentIsAsSmallAsItMayBeWhereALargerOneDoesNotFit) {
  allocator_.set_limit_bytes(0, 8 * kMiB);
  std::byte* block = allocate(5 * kMiB);
  EXPECT_EQ(reserved(), static_cast<std::int64_t>(6 * kMiB));
  std::byte* small = allocate(1);
  EXPECT_NE(out_of_memory([&] { static_cast<void>(allocate(2 * kMiB)); }), "");
  allocator_.free(block);
  allocator_.free(small);
}

TEST_F(AllocatorPolicyTest, RequestsAreRoundedToPartsOfPowersOfTwo) {
  AllocationPolicy policy;
  policy.roundup_power2_divisions.fill(4);
  EXPECT_EQ(policy.block_size(1), 512U);
  EXPECT_EQ(policy.block_size(2048), 2048U);  // 512 bytes a part: not divided
  EXPECT_EQ(policy.block_size(2049), 2560U);
  EXPECT_EQ(policy.block_size(5000), 5120U);
  EXPECT_EQ(policy.block_size(5121), 6144U);
  EXPECT_EQ(policy.block_size(8192), 8192U);
  EXPECT_EQ(policy.block_size((std::size_t{1} << 60) - 1), std::size_t{1} << 60);
  policy.roundup_power2_divisions = {};
  EXPECT_EQ(policy.block_size(5121), 5632U);
  // By size: below 2 MiB, below 4, below 8.
  policy.roundup_power2_divisions = {0, 2, 8};
  EXPECT_EQ(policy.block_size(2 * kMiB - 5), 2 * kMiB);
  EXPECT_EQ(policy.block_size(kMiB + 5), kMiB + 512);
  EXPECT_EQ(policy.block_size(2 * kMiB + 1), 3 * kMiB);
  EXPECT_EQ(policy.block_size(4 * kMiB + 1), 4 * kMiB + kMiB / 2);
  EXPECT_EQ(policy.block_size(8 * kMiB + 1), 8 * kMiB + 512);
}

TEST_F(AllocatorPolicyTest, RoundedRequestsAreHitsToo) {
  AllocationPolicy policy;
  policy.roundup_power2_divisions.fill(4);
  allocator_.set_policy(policy);
  std::byte* block = allocate(4500 * 1024);
  EXPECT_EQ(active(), static_cast<std::int64_t>(5 * kMiB));
  EXPECT_EQ(current(&DeviceStats::requested_bytes), 4500 * 1024);
  allocator_.free(block);
  const std::uint64_t calls = sim_->calls(CallKind::kAllocate);
  EXPECT_EQ(allocate(4100 * 1024), block);
  allocator_.free(block);
  EXPECT_EQ(sim_->calls(CallKind::kAllocate), calls);
}

TEST_F(AllocatorPolicyTest, LargeSegmentsAreAsLargeAsThePolicySays) {
  AllocationPolicy policy;
  policy.large_segment_bytes = 32 * kMiB;
  policy.max_non_split_rounding_bytes = 32 * kMiB;
  allocator_.set_policy(policy);
  std::byte* block = allocate(2 * kMiB);
  EXPECT_EQ(reserved(), static_cast<std::int64_t>(32 * kMiB));
  allocator_.free(block);
}

// Blocks of 30 MiB and more are not cut.
class AllocatorUncutTest : public AllocatorTest {
 protected:
  AllocatorUncutTest() {
    AllocationPolicy policy;
    policy.max_split_size_bytes = 30 * kMiB;
    allocator_.set_policy(policy);
  }

  // Frees segments of these sizes, so that nothing of them is in a cache.
  void leave_free(const std::vector<std::size_t>& sizes_mib, StreamRef on) {
    std::vector<std::byte*> blocks;
    for (const std::size_t size : sizes_mib) blocks.push_back(allocate(size * kMiB, on));
    for (std::byte* block : blocks) allocator_.free(block);
    static_cast<void>(allocator_.largest_free_block_bytes(0));
  }

  // What is still reserved when `wanted_mib` more have found room under a limit; in MiB.
  std::int64_t reserved_mib_beside(std::size_t wanted_mib) {
    allocator_.set_limit_bytes(0, static_cast<std::size_t>(reserved()));
    std::byte* block = allocate(wanted_mib * kMiB);
    const std::int64_t left =
        reserved() / static_cast<std::int64_t>(kMiB) - static_cast<std::int64_t>(wanted_mib);
    allocator_.free(block);
    return left;
  }
};

TEST_F(AllocatorUncutTest, TheSmallestSegmentThatIsEnoughGoesBack) {
  leave_free({40, 60, 90, 200}, home_);
  EXPECT_EQ(reserved_mib_beside(66), 40 + 60 + 200);
}

TEST_F(AllocatorUncutTest, WhereNoneIsEnoughTheLargestGoBack) {
  leave_free({40, 60, 90, 100}, home_);
  EXPECT_EQ(reserved_mib_beside(170), 40 + 60);
}

TEST_F(AllocatorUncutTest, OtherStreamsSegmentsGoBackOnlyIfThatIsNotEnough) {
  const StreamRef other = stream();
  leave_free({100}, other);
  leave_free({40, 60}, home_);
  EXPECT_EQ(reserved_mib_beside(90), 100);
  allocator_.empty_cache();
  allocator_.set_limit_bytes(0, 0);
  leave_free({100}, other);
  leave_free({40, 60}, home_);
  EXPECT_EQ(reserved_mib_beside(150), 0);
}

TEST_F(AllocatorUncutTest, ManySmallBlocksLeaveALargeOneWhole) {
  leave_free({100}, home_);
  std::vector<std::byte*> small;
  for (int i = 0; i < 50; ++i) {
    small.push_back(allocate(3 * kMiB));
    small.push_back(allocate(300 * 1024));
  }
  const std::int64_t before = reserved();
  std::byte* large = allocate(100 * kMiB);
  EXPECT_EQ(reserved(), before);
  allocator_.free(large);
  for (std::byte* block : small) allocator_.free(block);
}

// ---- in a capture ------------------------------------------------------------------------------

TEST_F(AllocatorPolicyTest, NothingGoesBackToTheDriverInACapture) {
  AllocationPolicy policy;
  policy.garbage_collection_threshold = 0.05;  // of 2 GiB
  allocator_.set_policy(policy);
  const StreamRef capturing = stream();
  allocator_.free(allocate(300 * kMiB));
  sim_->begin_capture(capturing, SimCaptureMode::kGlobal);
  const std::uint64_t frees = sim_->calls(CallKind::kFree);
  std::byte* block = allocate(200 * kMiB, capturing);
  allocator_.set_limit_bytes(0, 510 * kMiB);
  EXPECT_NE(out_of_memory([&] { static_cast<void>(allocate(50 * kMiB, capturing)); }), "");
  EXPECT_EQ(sim_->calls(CallKind::kFree), frees);
  EXPECT_EQ(allocator_.stats(0).num_alloc_retries, 0);
  EXPECT_NE(sim_->end_capture(capturing), nullptr);
  std::byte* other = allocate(50 * kMiB, capturing);
  EXPECT_GT(sim_->calls(CallKind::kFree), frees);
  allocator_.free(block);
  allocator_.free(other);
}

// ---- beside a thread that is in the driver ------------------------------------------------------

class AllocatorInTheDriver : public AllocatorTest {
 protected:
  // Hits, misses that free memory serves, and numbers, all while one call hangs.
  void expect_others_go_on() {
    ASSERT_TRUE(sim_->faults().wait_for_hanging(1, std::chrono::seconds(10)));
    for (int i = 0; i < 1000; ++i) allocator_.free(allocate(4096));
    std::byte* cut = allocate(7 * 512);
    std::byte* large_cut = allocate(3 * kMiB);
    EXPECT_GT(allocated(), 0);
    EXPECT_TRUE(allocator_.find(cut).has_value());
    allocator_.free(cut);
    allocator_.free(large_cut);
    EXPECT_EQ(sim_->faults().hanging(), 1);
    sim_->faults().release_hangs();
  }

  // Segments with room in them, and a block to hit.
  void warm_up() {
    small_ = allocate(512);
    large_ = allocate(2 * kMiB);
    allocator_.free(allocate(4096));
  }
  void TearDown() override {
    allocator_.free(small_);
    allocator_.free(large_);
    AllocatorTest::TearDown();
  }

 private:
  std::byte* small_ = nullptr;
  std::byte* large_ = nullptr;
};

TEST_F(AllocatorInTheDriver, OthersAllocateAndFreeWhileASegmentIsMade) {
  warm_up();
  sim_->faults().add("allocate:1=hang");
  std::thread slow([&] { allocator_.free(allocate(64 * kMiB)); });
  expect_others_go_on();
  slow.join();
}

TEST_F(AllocatorInTheDriver, OthersAllocateAndFreeWhileASegmentIsReturned) {
  warm_up();
  allocator_.free(allocate(100 * kMiB));
  sim_->faults().add("free:1=hang");
  std::thread slow([&] { allocator_.empty_cache(); });
  expect_others_go_on();
  slow.join();
}

}  // namespace
}  // namespace limbo::testing
