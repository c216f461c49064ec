// Sizes, best fit, split and coalesce, streams, and wrong frees.
#include <array>
#include <set>

#include "tests/unit/allocator_support.h"

namespace limbo::testing {
namespace {

class AllocatorBlocks : public AllocatorTest {};

TEST_F(AllocatorBlocks, NothingForNothing) {
  EXPECT_EQ(allocator_.allocate(0, home_), nullptr);
  allocator_.free(nullptr);
  EXPECT_EQ(sim_->calls(CallKind::kAllocate), 0U);
  EXPECT_FALSE(allocator_.used());
}

TEST_F(AllocatorBlocks, RoundsAndChoosesSegmentsAsNativeDoes) {
  struct Case {
    std::size_t asked, rounded, segment;
  };
  const std::array cases{
      Case{1, 512, 2 * kMiB},
      Case{512, 512, 2 * kMiB},
      Case{513, 1024, 2 * kMiB},
      Case{kMiB, kMiB, 2 * kMiB},
      Case{kMiB + 1, kMiB + 512, 20 * kMiB},
      Case{10 * kMiB - 512, 10 * kMiB - 512, 20 * kMiB},
      Case{10 * kMiB, 10 * kMiB, 10 * kMiB},
      Case{10 * kMiB + 1, 10 * kMiB + 512, 12 * kMiB},
      Case{11 * kMiB, 12 * kMiB, 12 * kMiB},  // what remains is too little for a block
  };
  for (const Case& one : cases) {
    void* data = allocate(one.asked);
    const auto view = allocator_.find(data);
    ASSERT_TRUE(view.has_value()) << one.asked;
    EXPECT_EQ(view->size_bytes, one.rounded) << one.asked;
    EXPECT_EQ(view->requested_bytes, one.asked);
    EXPECT_EQ(view->piece_size_bytes, one.segment) << one.asked;
    EXPECT_EQ(reserved(), static_cast<std::int64_t>(one.segment)) << one.asked;
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(data) % 512, 0U);
    allocator_.free(data);
    allocator_.empty_cache();
  }
  EXPECT_TRUE(allocator_.used());
}

TEST_F(AllocatorBlocks, CutsASegmentInAddressOrderAndMergesIt) {
  std::vector<std::byte*> blocks;
  for (int count = 0; count < 8; ++count) blocks.push_back(allocate(256 << 10));
  for (std::size_t index = 0; index < blocks.size(); ++index) {
    EXPECT_EQ(blocks[index], blocks[0] + index * (256 << 10));
  }
  EXPECT_EQ(reserved(), static_cast<std::int64_t>(2 * kMiB));
  for (const std::size_t index : {1U, 3U, 2U, 0U, 7U, 5U, 6U, 4U}) {
    allocator_.free(blocks[index]);
    allocator_.check_invariants();
  }
  EXPECT_EQ(allocator_.largest_free_block_bytes(0), 2 * kMiB);
}

TEST_F(AllocatorBlocks, TakesTheBestFitAtTheLowestAddress) {
  // Free blocks of 4, 2, 2 and 3 MiB, kept apart by 1.5 MiB ones.
  const std::size_t wall = 3 * kMiB / 2;
  std::vector<std::byte*> walls;
  std::vector<std::byte*> holes;
  for (const std::size_t size : {4 * kMiB, 2 * kMiB, 2 * kMiB, 3 * kMiB}) {
    holes.push_back(allocate(size));
    walls.push_back(allocate(wall));
  }
  for (std::byte* hole : holes) allocator_.free(hole);
  EXPECT_GE(allocator_.largest_free_block_bytes(0), 4 * kMiB);  // and the caches are empty
  std::byte* first = allocate(2 * kMiB - 1);
  EXPECT_EQ(first, holes[1]);
  std::byte* second = allocate(2 * kMiB - 512);
  EXPECT_EQ(second, holes[2]);
  std::byte* third = allocate(2 * kMiB);
  EXPECT_EQ(third, holes[3]);
  EXPECT_EQ(allocator_.find(third)->size_bytes, 3 * kMiB);  // 1 MiB is not cut off
  for (std::byte* data : {first, second, third}) allocator_.free(data);
  for (std::byte* data : walls) allocator_.free(data);
}

TEST_F(AllocatorBlocks, ReusesAFreedBlockWithoutTheDriver) {
  std::byte* data = allocate(4096);
  const std::uint64_t calls = sim_->calls(CallKind::kAllocate);
  for (int count = 0; count < 100; ++count) {
    allocator_.free(data);
    EXPECT_EQ(allocate(4000), data);
  }
  EXPECT_EQ(sim_->calls(CallKind::kAllocate), calls);
  EXPECT_EQ(sim_->calls(CallKind::kRecordEvent), 0U);
  allocator_.free(data);
}

TEST_F(AllocatorBlocks, KeepsStreamsApart) {
  const StreamRef other = stream();
  std::byte* mine = allocate(4096);
  allocator_.free(mine);
  std::byte* theirs = allocate(4096, other);
  EXPECT_NE(theirs, mine);
  EXPECT_EQ(allocator_.find(theirs)->stream, other);
  EXPECT_EQ(reserved(), static_cast<std::int64_t>(4 * kMiB));
  allocator_.free(theirs);
  EXPECT_EQ(allocate(4096), mine);
  allocator_.free(mine);
}

TEST_F(AllocatorBlocks, FindsByInteriorPointers) {
  for (const std::size_t size : {std::size_t{5000}, 3 * kMiB, 64 * kMiB}) {
    std::byte* before = allocate(size);
    std::byte* data = allocate(size);
    const std::size_t rounded = allocator_.find(data)->size_bytes;
    for (const std::size_t offset : {std::size_t{0}, std::size_t{1}, size / 2, rounded - 1}) {
      const auto view = allocator_.find(data + offset);
      ASSERT_TRUE(view.has_value()) << size << " " << offset;
      EXPECT_EQ(view->data, data);
      EXPECT_EQ(static_cast<std::byte*>(view->piece_base) + view->offset_bytes, data);
    }
    allocator_.free(data);
    EXPECT_FALSE(allocator_.find(data).has_value());
    allocator_.free(before);
  }
  int on_the_stack = 0;
  EXPECT_FALSE(allocator_.find(&on_the_stack).has_value());
  EXPECT_FALSE(allocator_.find(nullptr).has_value());
}

TEST_F(AllocatorBlocks, GivesEveryPieceAnIdOfItsOwn) {
  std::set<std::uint64_t> ids;
  for (int count = 0; count < 5; ++count) {
    std::byte* data = allocate(20 * kMiB);
    EXPECT_TRUE(ids.insert(allocator_.find(data)->piece_id).second);
    allocator_.free(data);
    allocator_.empty_cache();
  }
}

TEST_F(AllocatorBlocks, RefusesADeviceThatDoesNotExist) {
  EXPECT_ERROR(static_cast<void>(allocator_.allocate(512, {1, nullptr})), kBadArgument);
  EXPECT_ERROR(static_cast<void>(allocator_.allocate(0, {-1, nullptr})), kBadArgument);
  EXPECT_ERROR(static_cast<void>(allocator_.stats(7)), kBadArgument);
}

// ---- wrong frees ------------------------------------------------------------------------------

TEST_F(AllocatorBlocks, DoubleFreesAreNamed) {
  for (const std::size_t size : {std::size_t{512}, kMiB, 3 * kMiB, 64 * kMiB, 256 * kMiB}) {
    std::byte* data = allocate(size);
    allocator_.free(data);
    EXPECT_ERROR(allocator_.free(data), kDoubleFree) << size;
    static_cast<void>(allocator_.largest_free_block_bytes(0));  // out of the caches and merged
    EXPECT_ERROR(allocator_.free(data), kDoubleFree) << size;
    allocator_.check_invariants();
  }
}

TEST_F(AllocatorBlocks, ADoubleFreeOfAMergedBlockIsNamed) {
  std::byte* first = allocate(4096);
  std::byte* second = allocate(4096);
  allocator_.free(second);
  allocator_.free(first);
  static_cast<void>(allocator_.largest_free_block_bytes(0));
  EXPECT_ERROR(allocator_.free(second), kDoubleFree);
}

TEST_F(AllocatorBlocks, InteriorFreesAreNamed) {
  for (const std::size_t size : {std::size_t{4096}, 3 * kMiB}) {
    std::byte* data = allocate(size);
    EXPECT_ERROR(allocator_.free(data + 1), kInteriorFree);
    EXPECT_ERROR(allocator_.free(data + 512), kInteriorFree);
    EXPECT_ERROR(allocator_.free(data + size - 1), kInteriorFree);
    EXPECT_EQ(allocated(), static_cast<std::int64_t>(size));
    allocator_.free(data);
  }
}

TEST_F(AllocatorBlocks, ForeignFreesAreNamed) {
  int on_the_stack = 0;
  EXPECT_ERROR(allocator_.free(&on_the_stack), kForeignFree);
  EXPECT_ERROR(allocator_.free(reinterpret_cast<void*>(1)), kForeignFree);
  EXPECT_ERROR(allocator_.free(reinterpret_cast<void*>(~std::uintptr_t{0})), kForeignFree);
  void* direct = sim_->try_allocate(0, 2 * kMiB);
  EXPECT_ERROR(allocator_.free(direct), kForeignFree);
  sim_->free(0, direct);
  Allocator other(*sim_);
  void* theirs = other.allocate(512, home_);
  EXPECT_ERROR(allocator_.free(theirs), kForeignFree);
  other.free(theirs);
}

}  // namespace
}  // namespace limbo::testing
