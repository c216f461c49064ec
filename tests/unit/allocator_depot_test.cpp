// The depot: what one thread frees and nobody takes is bounded.
#include "allocator/depot.h"
#include "tests/unit/allocator_support.h"
#include "tests/unit/small_caches.h"
#include "tests/unit/worker.h"

namespace limbo::testing {
namespace {

TEST(DepotRoom, IsFullAtItsLimit) {
  DepotRoom room(1000);
  EXPECT_TRUE(room.try_hold(600));
  EXPECT_FALSE(room.try_hold(401));
  EXPECT_TRUE(room.try_hold(400));
  EXPECT_EQ(room.held_bytes(), 1000U);
  room.release(1000);
  EXPECT_EQ(room.held_bytes(), 0U);
}

class AllocatorDepot : protected SmallCaches, public AllocatorTest {};

// The invariants say that the depot of a device holds no more than it may, of all streams together.
TEST_F(AllocatorDepot, HoldsNoMoreThanACacheMay) {
  const StreamRef other = stream();
  std::vector<std::byte*> live;
  for (const StreamRef home : {home_, other}) {
    for (int count = 0; count < 1000; ++count) live.push_back(allocate(64 << 10, home));
  }
  Worker frees;
  frees.run([&] {
    for (std::size_t index = 0; index < live.size(); ++index) {
      allocator_.free(live[index]);
      if (index % 100 == 0) allocator_.check_invariants();
    }
  });
  EXPECT_EQ(allocated(), 0);
  // The rest is in the free lists, and merged there.
  std::size_t blocks = 0;
  for (const SegmentView& segment : allocator_.snapshot()) blocks += segment.blocks.size();
  EXPECT_LT(blocks, live.size() / 4);
}

}  // namespace
}  // namespace limbo::testing
