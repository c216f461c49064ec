// Checkpoints of private pools: going back gives exactly the layout that was.
#include <algorithm>
#include <set>
#include <thread>
#include <tuple>

#include "tests/unit/allocator_support.h"

namespace limbo::testing {
namespace {

constexpr PoolId kTreePool{0, 1};
constexpr PoolId kOtherTree{0, 2};

// What a pool looks like: per segment its address, size, and blocks (size, requested, allocated).
using PoolLook = std::vector<
    std::tuple<void*, std::size_t, std::vector<std::tuple<std::size_t, std::size_t, bool>>>>;

class Checkpoints : public AllocatorTest {
 protected:
  explicit Checkpoints(int devices = 1) : AllocatorTest(devices, 2048) {}

  void SetUp() override { allocator_.retain_pool(0, kTreePool); }
  void TearDown() override {
    for (const PoolId id : {kTreePool, kOtherTree}) {
      for (int device = 0; device < sim_->device_count(); ++device) {
        while (allocator_.pool_use_count(device, id) > 0) allocator_.release_pool(device, id);
      }
    }
    AllocatorTest::TearDown();
  }

  [[nodiscard]] std::byte* allocate_in(std::size_t size_bytes, PoolId pool = kTreePool,
                                       int device = 0) {
    // This thread's allocations alone: going back takes away what others put into the pool meanwhile.
    const std::thread::id self = std::this_thread::get_id();
    allocator_.begin_allocate_to_pool(
        device, pool, [self](StreamHandle) { return std::this_thread::get_id() == self; });
    std::byte* data = allocate(size_bytes, {device, nullptr});
    allocator_.end_allocate_to_pool(device, pool);
    allocator_.release_pool(device, pool);
    return data;
  }
  [[nodiscard]] std::vector<std::byte*> allocate_in(const std::vector<std::size_t>& sizes) {
    std::vector<std::byte*> all;
    for (const std::size_t size : sizes) all.push_back(allocate_in(size));
    return all;
  }
  void free_all(const std::vector<std::byte*>& blocks) {
    for (std::byte* block : blocks) allocator_.free(block);
  }
  [[nodiscard]] PoolLook look(PoolId pool = kTreePool, int device = 0) {
    PoolLook seen;
    for (const SegmentView& segment : allocator_.snapshot(device, pool)) {
      std::vector<std::tuple<std::size_t, std::size_t, bool>> blocks;
      for (const auto& block : segment.blocks) {
        blocks.emplace_back(block.size_bytes, block.requested_bytes, block.allocated);
      }
      seen.emplace_back(segment.base, segment.size_bytes, std::move(blocks));
    }
    return seen;
  }
  [[nodiscard]] std::set<void*> live(PoolId pool = kTreePool) {
    const std::vector<void*> blocks = allocator_.pool_live_allocations(0, pool);
    return {blocks.begin(), blocks.end()};
  }
  // Goes back, and looks at everything that must be true then. What is allocated is freed.
  void go_back(const Checkpoint& checkpoint, const PoolLook& expected) {
    const std::set<void*> before = live();
    const CheckpointDelta delta = allocator_.restore_checkpoint(checkpoint);
    allocator_.check_invariants();
    EXPECT_EQ(look(), expected);
    EXPECT_EQ(std::set<void*>(delta.freed.begin(), delta.freed.end()), before);
    EXPECT_EQ(std::set<void*>(delta.allocated.begin(), delta.allocated.end()), live());
    for (void* data : delta.allocated) allocator_.free(data);
  }
};

TEST_F(Checkpoints, OneBlock) {
  std::byte* data = allocate_in(4096);
  const auto taken = allocator_.take_checkpoint(0, kTreePool);
  const PoolLook then = look();
  allocator_.free(data);
  EXPECT_EQ(allocate_in(512), data);
  const CheckpointDelta delta = allocator_.restore_checkpoint(*taken);
  EXPECT_EQ(delta.freed, std::vector<void*>{data});
  EXPECT_EQ(delta.allocated, std::vector<void*>{data});
  EXPECT_EQ(look(), then);
  allocator_.free(data);
  EXPECT_ERROR(allocator_.free(data), kDoubleFree);
}

TEST_F(Checkpoints, NothingThen) {
  const auto taken = allocator_.take_checkpoint(0, kTreePool);
  std::byte* data = allocate_in(30 * kMiB);
  const CheckpointDelta delta = allocator_.restore_checkpoint(*taken);
  EXPECT_EQ(delta.freed, std::vector<void*>{data});
  EXPECT_TRUE(delta.allocated.empty());
  EXPECT_EQ(active(), 0);
  EXPECT_EQ(look().size(), 1U);  // the segment is still the pool's
  EXPECT_EQ(allocate_in(30 * kMiB), data);
  allocator_.free(data);
}

TEST_F(Checkpoints, BlocksInTheMiddleOfSegments) {
  const auto blocks = allocate_in({4096, 512, kMiB, 3 * kMiB, 5 * kMiB, 2 * kMiB, 40 * kMiB});
  for (const std::size_t gone : {0U, 2U, 4U}) allocator_.free(blocks[gone]);
  const auto taken = allocator_.take_checkpoint(0, kTreePool);
  const PoolLook then = look();
  for (const std::size_t gone : {1U, 3U, 5U, 6U}) allocator_.free(blocks[gone]);
  const auto others = allocate_in({700, 700, 9 * kMiB, 30 * kMiB, 100 * kMiB});
  std::byte* plain = allocate(4096);
  const std::set<void*> before = live();
  const CheckpointDelta delta = allocator_.restore_checkpoint(*taken);
  allocator_.check_invariants();
  EXPECT_EQ(std::set<void*>(delta.freed.begin(), delta.freed.end()), before);
  EXPECT_EQ(live(), std::set<void*>({blocks[1], blocks[3], blocks[5], blocks[6]}));
  // What came later is behind it, free.
  PoolLook now = look();
  std::erase_if(now, [](const auto& segment) {
    const auto& blocks_of = std::get<2>(segment);
    return std::get<1>(segment) == 100 * kMiB && blocks_of.size() == 1 &&
           !std::get<2>(blocks_of[0]);
  });
  EXPECT_EQ(now, then);
  for (const std::size_t left : {1U, 3U, 5U, 6U}) allocator_.free(blocks[left]);
  allocator_.free(plain);
  static_cast<void>(others);
}

TEST_F(Checkpoints, NeighboursThatAreAllocated) {
  const auto blocks = allocate_in({256 * 1024, 256 * 1024, 256 * 1024, 256 * 1024});
  const auto taken = allocator_.take_checkpoint(0, kTreePool);
  const PoolLook then = look();
  free_all(blocks);
  const std::byte* merged = allocate_in(kMiB);
  EXPECT_EQ(merged, blocks[0]);
  go_back(*taken, then);
}

TEST_F(Checkpoints, MoreFreesAfterItAreUndone) {
  const auto blocks = allocate_in({4096, 4096, 4096});
  const auto taken = allocator_.take_checkpoint(0, kTreePool);
  const PoolLook then = look();
  allocator_.free(blocks[1]);
  const CheckpointDelta delta = allocator_.restore_checkpoint(*taken);
  EXPECT_EQ(delta.freed.size(), 2U);
  EXPECT_EQ(delta.allocated.size(), 3U);
  EXPECT_EQ(look(), then);
  free_all(blocks);
}

TEST_F(Checkpoints, CanBeGoneBackToAgainAndAgain) {
  const auto first = allocate_in({4096, 3 * kMiB});
  const auto early = allocator_.take_checkpoint(0, kTreePool);
  const PoolLook early_look = look();
  const auto second = allocate_in({512, 2 * kMiB});
  const auto late = allocator_.take_checkpoint(0, kTreePool);
  const PoolLook late_look = look();
  for (int round = 0; round < 3; ++round) {
    static_cast<void>(allocator_.restore_checkpoint(*early));
    EXPECT_EQ(look(), early_look);
    static_cast<void>(allocator_.restore_checkpoint(*late));
    EXPECT_EQ(look(), late_look);
    allocator_.check_invariants();
  }
  free_all(first);
  free_all(second);
}

TEST_F(Checkpoints, ThePolicyOfTodayDoesNotChangeTheLayoutOfThen) {
  const auto blocks = allocate_in({12 * kMiB, 30 * kMiB, 3 * kMiB});
  allocator_.free(blocks[1]);
  std::byte* part = allocate_in(25 * kMiB);  // cut from the 30 MiB
  const auto taken = allocator_.take_checkpoint(0, kTreePool);
  const PoolLook then = look();
  free_all({blocks[0], blocks[2], part});
  AllocationPolicy policy;
  policy.max_split_size_bytes = 21 * kMiB;
  allocator_.set_policy(policy);
  go_back(*taken, then);
  allocator_.set_policy({});
}

TEST_F(Checkpoints, StatisticsFollow) {
  const auto blocks = allocate_in({3 * kMiB, 1000});
  const auto taken = allocator_.take_checkpoint(0, kTreePool);
  const std::int64_t then = allocated();
  free_all(blocks);
  static_cast<void>(allocate_in(7 * kMiB));
  static_cast<void>(allocator_.restore_checkpoint(*taken));
  EXPECT_EQ(allocated(), then);
  EXPECT_EQ(current(&DeviceStats::requested_bytes), static_cast<std::int64_t>(3 * kMiB + 1000));
  free_all(blocks);
}

TEST_F(Checkpoints, OtherPoolsAreLeftAlone) {
  std::byte* plain = allocate(4096);
  std::byte* other = allocate_in(4096, kOtherTree);
  std::byte* mine = allocate_in(4096);
  const auto taken = allocator_.take_checkpoint(0, kTreePool);
  const PoolLook other_look = look(kOtherTree);
  allocator_.free(mine);
  static_cast<void>(allocator_.restore_checkpoint(*taken));
  EXPECT_EQ(look(kOtherTree), other_look);
  EXPECT_TRUE(allocator_.find(plain));
  for (std::byte* data : {plain, other, mine}) allocator_.free(data);
}

// ---- refused --------------------------------------------------------------------------------

TEST_F(Checkpoints, BlocksThatOtherStreamsUseAreNotTaken) {
  const StreamRef user = stream();
  const auto taken = allocator_.take_checkpoint(0, kTreePool);
  const auto blocks = allocate_in({4096, 4096});
  EXPECT_TRUE(allocator_.record_stream(blocks[1], user));
  PoolLook before = look();
  EXPECT_ERROR(static_cast<void>(allocator_.restore_checkpoint(*taken)), kBadArgument);
  EXPECT_EQ(look(), before);  // nothing has changed
  allocator_.check_invariants();
  // While somebody may be capturing, nothing is waited for.
  const SimHold hold = sim_->hold_stream(user);
  allocator_.free(blocks[1]);
  allocator_.begin_allocate_to_pool(0, kOtherTree, [](StreamHandle) { return false; });
  before = look();
  EXPECT_ERROR(static_cast<void>(allocator_.restore_checkpoint(*taken)), kBadArgument);
  EXPECT_EQ(look(), before);
  allocator_.check_invariants();
  allocator_.end_allocate_to_pool(0, kOtherTree);
  sim_->release_hold(hold);
  EXPECT_EQ(allocator_.restore_checkpoint(*taken).freed, std::vector<void*>{blocks[0]});
  EXPECT_EQ(active(), 0);
}

// What was freed in a capture has its events recorded only behind it: their work is waited for.
TEST_F(Checkpoints, GoingBackWaitsForFreedBlocksThatOtherStreamsUse) {
  const StreamRef user = stream();
  const auto taken = allocator_.take_checkpoint(0, kTreePool);
  allocator_.begin_allocate_to_pool(0, kTreePool, [](StreamHandle) { return true; });
  std::byte* data = allocate(4096);
  EXPECT_TRUE(allocator_.record_stream(data, user));
  allocator_.free(data);
  allocator_.end_allocate_to_pool(0, kTreePool);
  allocator_.release_pool(0, kTreePool);
  sim_->enqueue_kernel(user, milliseconds(50), nullptr, 0, 0);
  EXPECT_TRUE(allocator_.restore_checkpoint(*taken).freed.empty());
  EXPECT_EQ(active(), 0);
  EXPECT_EQ(allocator_.stats(0).num_sync_all_streams, 0);
}

// What waits at the checkpoint is free memory by the time of going back.
TEST_F(Checkpoints, ABlockThatWaitedThenIsFreeNow) {
  const StreamRef user = stream();
  const auto blocks = allocate_in({4096, 4096, 4096});
  EXPECT_TRUE(allocator_.record_stream(blocks[1], user));
  const SimHold hold = sim_->hold_stream(user);
  allocator_.free(blocks[1]);
  allocator_.free(blocks[2]);
  const auto taken = allocator_.take_checkpoint(0, kTreePool);
  sim_->release_hold(hold);
  sim_->wait_until_idle();
  static_cast<void>(allocator_.restore_checkpoint(*taken));
  allocator_.check_invariants();
  EXPECT_EQ(live(), std::set<void*>{blocks[0]});
  EXPECT_EQ(std::get<2>(look()[0]).size(), 2U);
  allocator_.free(blocks[0]);
}

TEST_F(Checkpoints, PoolsWithoutUseHaveNone) {
  std::byte* data = allocate_in(4096);
  const auto taken = allocator_.take_checkpoint(0, kTreePool);
  allocator_.release_pool(0, kTreePool);
  EXPECT_ERROR(static_cast<void>(allocator_.take_checkpoint(0, kTreePool)), kBadArgument);
  EXPECT_ERROR(static_cast<void>(allocator_.restore_checkpoint(*taken)), kBadArgument);
  EXPECT_ERROR(static_cast<void>(allocator_.take_checkpoint(0, kOtherTree)), kBadArgument);
  EXPECT_ERROR(static_cast<void>(allocator_.take_checkpoint(0, PoolId{})), kBadArgument);
  EXPECT_ERROR(static_cast<void>(allocator_.take_checkpoint(5, kTreePool)), kBadArgument);
  allocator_.free(data);
}

TEST_F(Checkpoints, MemoryThatIsGoneIsNoticed) {
  allocator_.free(allocate_in(4096));
  const auto taken = allocator_.take_checkpoint(0, kTreePool);
  allocator_.release_pool(0, kTreePool);
  allocator_.empty_cache(0, kTreePool);
  std::byte* data = allocate_in(4096);  // a pool of the same name
  allocator_.retain_pool(0, kTreePool);
  EXPECT_ERROR(static_cast<void>(allocator_.restore_checkpoint(*taken)), kBadArgument);
  EXPECT_EQ(live(), std::set<void*>{data});
  allocator_.free(data);
}

// ---- threads and devices --------------------------------------------------------------------

TEST_F(Checkpoints, OthersGoOnAllocatingMeanwhile) {
  const auto blocks = allocate_in({4096, 3 * kMiB, 512});
  const auto taken = allocator_.take_checkpoint(0, kTreePool);
  const PoolLook then = look();
  std::atomic<bool> stop{false};
  std::thread other([&] {
    while (!stop) {
      std::byte* small = allocate(2000);
      std::byte* large = allocate(5 * kMiB);
      allocator_.free(small);
      allocator_.free(large);
    }
  });
  for (int round = 0; round < 200; ++round) {
    static_cast<void>(allocate_in(1000));
    static_cast<void>(allocator_.restore_checkpoint(*taken));
    ASSERT_EQ(look(), then);
  }
  stop = true;
  other.join();
  free_all(blocks);
}

class CheckpointsOnDevices : public Checkpoints {
 protected:
  CheckpointsOnDevices() : Checkpoints(4) {}
};

TEST_F(CheckpointsOnDevices, AreOfTheirDeviceAlone) {
  allocator_.retain_pool(3, kTreePool);
  std::byte* here = allocate_in(4096);
  std::byte* there = allocate_in(4096, kTreePool, 3);
  const auto taken = allocator_.take_checkpoint(3, kTreePool);
  const PoolLook then = look(kTreePool, 3);
  allocator_.free(there);
  std::byte* more = allocate_in(8192, kTreePool, 3);
  std::byte* more_here = allocate_in(8192);
  const PoolLook here_look = look(kTreePool, 0);
  EXPECT_EQ(allocator_.restore_checkpoint(*taken).freed, std::vector<void*>{more});
  EXPECT_EQ(look(kTreePool, 3), then);
  EXPECT_EQ(look(kTreePool, 0), here_look);
  for (std::byte* data : {here, more_here, there}) allocator_.free(data);
}

// Its segment may be gone by the time of going back. Nothing of it is in use, so it need not be there.
TEST_F(Checkpoints, WhatGoesBackToTheDriverIsNoPartOfOne) {
  std::byte* stays = allocate_in(3 * kMiB);
  allocator_.free(allocate_in(700));
  allocator_.release_pool(0, kTreePool);
  sim_->faults().add("free:1=hang");
  std::thread returns([&] { allocator_.empty_cache(0, kTreePool); });
  ASSERT_TRUE(sim_->faults().wait_for_hanging(1, kPatience));
  allocator_.retain_pool(0, kTreePool);
  const auto checkpoint = allocator_.take_checkpoint(0, kTreePool);
  EXPECT_ERROR(static_cast<void>(allocator_.restore_checkpoint(*checkpoint)), kBadArgument);
  sim_->faults().release_hangs();
  returns.join();
  const CheckpointDelta delta = allocator_.restore_checkpoint(*checkpoint);
  EXPECT_EQ(delta.allocated, std::vector<void*>{stays});
  allocator_.check_invariants();
  allocator_.free(stays);
}

}  // namespace
}  // namespace limbo::testing
