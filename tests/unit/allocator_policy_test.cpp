// Which free memory serves a request, and what is tried before out-of-memory is reported.
#include <thread>

#include "tests/unit/allocator_support.h"

namespace limbo::testing {
namespace {

constexpr std::size_t kMiB = std::size_t{1} << 20;

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

}  // namespace
}  // namespace limbo::testing
