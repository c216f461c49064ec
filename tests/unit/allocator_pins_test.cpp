// Pins and limbo.
#include <thread>

#include "tests/unit/allocator_support.h"

namespace limbo::testing {
namespace {

class AllocatorPins : public AllocatorTest {
 protected:
  [[nodiscard]] std::int64_t limbo_blocks() { return allocator_.stats(0).limbo_blocks; }
};

TEST_F(AllocatorPins, APinnedBlockIsNotReusedWhenItIsFreed) {
  std::byte* data = allocate(4096);
  const BlockView pinned = allocator_.pin(data + 100);
  EXPECT_EQ(pinned.data, data);
  EXPECT_EQ(pinned.size_bytes, 4096U);
  allocator_.free(data);
  EXPECT_EQ(allocated(), 0);
  EXPECT_EQ(active(), 4096);
  EXPECT_EQ(current(&DeviceStats::requested_bytes), 4096);
  EXPECT_EQ(limbo_blocks(), 1);
  EXPECT_EQ(allocator_.stats(0).limbo_bytes, 4096);
  std::byte* other = allocate(4096);
  EXPECT_NE(other, data);
  allocator_.check_invariants();

  Block* chain = allocator_.take_let_go();
  EXPECT_EQ(chain, pinned.block);
  EXPECT_EQ(Allocator::next_let_go(chain), nullptr);
  EXPECT_EQ(allocator_.take_let_go(), nullptr);
  allocator_.unpin(pinned.block);
  EXPECT_EQ(limbo_blocks(), 1);  // the list's own pin
  allocator_.unpin(chain);
  EXPECT_EQ(limbo_blocks(), 0);
  EXPECT_EQ(active(), 4096);  // `other`
  EXPECT_EQ(allocate(4096), data);
  allocator_.free(data);
  allocator_.free(other);
}

TEST_F(AllocatorPins, UnpinnedWhileAllocatedItIsAnOrdinaryBlock) {
  std::byte* data = allocate(3 * kMiB);
  const BlockView pinned = allocator_.pin(data);
  allocator_.pin_again(pinned.block);
  Allocator::lender_note(pinned.block) = this;
  allocator_.unpin(pinned.block);
  allocator_.unpin(pinned.block);
  EXPECT_EQ(allocated(), static_cast<std::int64_t>(3 * kMiB));
  allocator_.free(data);
  EXPECT_EQ(limbo_blocks(), 0);
  EXPECT_EQ(allocator_.take_let_go(), nullptr);
  // A note that the lender forgot does not reach the next owner.
  std::byte* again = allocate(3 * kMiB);
  EXPECT_EQ(again, data);
  const BlockView next = allocator_.pin(again);
  EXPECT_EQ(Allocator::lender_note(next.block), nullptr);
  allocator_.unpin(next.block);
  allocator_.free(again);
}

TEST_F(AllocatorPins, CountsInLimboToo) {
  std::byte* data = allocate(512);
  const BlockView pinned = allocator_.pin(data);
  Allocator::lender_note(pinned.block) = this;
  allocator_.free(data);
  allocator_.pin_again(pinned.block);
  allocator_.unpin(pinned.block);
  EXPECT_EQ(drain_let_go(allocator_), 1);
  EXPECT_EQ(limbo_blocks(), 1);
  EXPECT_EQ(Allocator::lender_note(pinned.block), this);
  allocator_.unpin(pinned.block);
  EXPECT_EQ(limbo_blocks(), 0);
}

TEST_F(AllocatorPins, EveryBlockIsLetGoOnce) {
  std::vector<BlockView> pinned;
  for (int count = 0; count < 10; ++count) {
    std::byte* data = allocate(1024);
    pinned.push_back(allocator_.pin(data));
    allocator_.free(data);
  }
  EXPECT_EQ(limbo_blocks(), 10);
  EXPECT_EQ(drain_let_go(allocator_), 10);
  EXPECT_EQ(drain_let_go(allocator_), 0);
  for (const BlockView& view : pinned) allocator_.unpin(view.block);
  EXPECT_EQ(limbo_blocks(), 0);
}

TEST_F(AllocatorPins, OnlyAllocatedMemoryOfOursCanBePinned) {
  int on_the_stack = 0;
  EXPECT_ERROR(static_cast<void>(allocator_.pin(&on_the_stack)), kNotLendable);
  EXPECT_ERROR(static_cast<void>(allocator_.pin(nullptr)), kNotLendable);
  std::byte* data = allocate(4096);
  allocator_.free(data);
  EXPECT_ERROR(static_cast<void>(allocator_.pin(data)), kNotLendable);
  std::byte* lent = allocate(4096);
  const BlockView pinned = allocator_.pin(lent);
  allocator_.free(lent);
  EXPECT_ERROR(static_cast<void>(allocator_.pin(lent)), kNotLendable);  // in limbo
  EXPECT_FALSE(allocator_.find(lent).has_value());
  EXPECT_ERROR(allocator_.free(lent), kDoubleFree);
  EXPECT_EQ(drain_let_go(allocator_), 1);
  allocator_.unpin(pinned.block);
}

TEST_F(AllocatorPins, UnpinWithoutAPinIsAnError) {
  std::byte* data = allocate(4096);
  const BlockView pinned = allocator_.pin(data);
  allocator_.unpin(pinned.block);
  EXPECT_ERROR(allocator_.unpin(pinned.block), kInternal);
  EXPECT_ERROR(allocator_.pin_again(pinned.block), kInternal);
  allocator_.free(data);
}

TEST_F(AllocatorPins, WaitsForEventsAfterTheLastUnpin) {
  const StreamRef user = stream();
  std::byte* data = allocate(4096);
  EXPECT_TRUE(allocator_.record_stream(data, user));
  const BlockView pinned = allocator_.pin(data);
  const SimHold hold = sim_->hold_stream(user);
  allocator_.free(data);
  EXPECT_EQ(drain_let_go(allocator_), 1);
  allocator_.unpin(pinned.block);
  EXPECT_EQ(limbo_blocks(), 0);
  EXPECT_EQ(active(), 4096);
  std::byte* other = allocate(4096);
  EXPECT_NE(other, data);
  sim_->release_hold(hold);
  allocator_.empty_cache();
  EXPECT_EQ(active(), 4096);  // `other`
  allocator_.free(other);
}

TEST_F(AllocatorPins, EventsAloneDoNotEndLimbo) {
  const StreamRef user = stream();
  std::byte* data = allocate(4096);
  EXPECT_TRUE(allocator_.record_stream(data, user));
  const BlockView pinned = allocator_.pin(data);
  allocator_.free(data);
  allocator_.empty_cache();  // the event has happened
  EXPECT_EQ(limbo_blocks(), 1);
  EXPECT_EQ(drain_let_go(allocator_), 1);
  allocator_.unpin(pinned.block);
  EXPECT_EQ(active(), 0);
}

TEST_F(AllocatorPins, AStreamThatUsesABlockInLimboIsWaitedFor) {
  const StreamRef user = stream();
  std::byte* data = allocate(4096);
  const BlockView pinned = allocator_.pin(data);
  allocator_.free(data);
  EXPECT_EQ(drain_let_go(allocator_), 1);
  const SimHold hold = sim_->hold_stream(user);
  EXPECT_TRUE(allocator_.record_stream(data + 8, user));
  allocator_.unpin(pinned.block);
  EXPECT_EQ(active(), 4096);
  EXPECT_FALSE(allocator_.record_stream(data, user));  // freed, and nobody's any more
  sim_->release_hold(hold);
  allocator_.empty_cache();
  EXPECT_EQ(active(), 0);
}

TEST_F(AllocatorPins, UnpinnedByAnyThread) {
  std::byte* data = allocate(4096);
  const BlockView pinned = allocator_.pin(data);
  std::thread([&] { allocator_.free(data); }).join();
  std::thread([&] { EXPECT_EQ(drain_let_go(allocator_), 1); }).join();
  std::thread([&] { allocator_.unpin(pinned.block); }).join();
  EXPECT_EQ(active(), 0);
}

TEST_F(AllocatorPins, ASnapshotShowsLimboAsPending) {
  std::byte* data = allocate(4096);
  const BlockView pinned = allocator_.pin(data);
  allocator_.free(data);
  const std::vector<SegmentView> segments = allocator_.snapshot();
  ASSERT_EQ(segments.size(), 1U);
  EXPECT_EQ(segments[0].allocated_bytes, 0U);
  EXPECT_EQ(segments[0].active_bytes, 4096U);
  EXPECT_TRUE(segments[0].blocks[0].active);
  EXPECT_FALSE(segments[0].blocks[0].allocated);
  EXPECT_EQ(drain_let_go(allocator_), 1);
  allocator_.unpin(pinned.block);
}

}  // namespace
}  // namespace limbo::testing
