// What a hit is made of: counted on the instructions that the built library executes.
#include <gtest/gtest.h>
#include <linux/membarrier.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <deque>
#include <memory>
#include <utility>

#include "allocator/thread_cache.h"
#include "tests/support/sizes.h"
#include "tests/support/steps.h"
#include "tests/unit/allocator_support.h"
#include "tests/unit/worker.h"

namespace limbo::testing {
namespace {

class Hits : public AllocatorTest {
 protected:
  void SetUp() override {
    if (const char* why = cannot_step()) GTEST_SKIP() << why;
  }

  [[nodiscard]] std::uint64_t device_calls() {
    std::uint64_t sum = 0;
    for (std::size_t kind = 0; kind < kCallKinds; ++kind) {
      sum += sim_->calls(static_cast<CallKind>(kind));
    }
    return sum;
  }

  std::deque<Worker> resting_;  // threads that know the allocator

  // Passing a gate takes none where the kernel has membarrier (gate.h), else an exchange.
  [[nodiscard]] static std::uint64_t locked_of_gate() {
    const long commands = syscall(SYS_membarrier, MEMBARRIER_CMD_QUERY, 0, 0);
    return commands > 0 && (commands & MEMBARRIER_CMD_PRIVATE_EXPEDITED) != 0 ? 0 : 1;
  }
};

TEST_F(Hits, TheCounterSeesWhatItIsLookingFor) {
  std::atomic<int> word{0};
  EXPECT_EQ(steps_of([&] { word.fetch_add(1); }).locked, 1U);
  EXPECT_EQ(steps_of([&] { static_cast<void>(word.exchange(1)); }).locked, 1U);
  EXPECT_EQ(steps_of([&] { word.store(2, std::memory_order_release); }).locked, 0U);
  EXPECT_EQ(steps_of([&] {
              int one = 1;
              word.compare_exchange_strong(one, 2);
            }).locked,
            1U);
  EXPECT_EQ(steps_of([&] { __builtin_ia32_mfence(); }).fences, 1U);
  EXPECT_EQ(steps_of([&] { static_cast<void>(syscall(SYS_getppid)); }).system_calls, 1U);
}

TEST_F(Hits, AllocatingTakesNoReadModifyWriteAndFreeingTakesOne) {
  const StreamRef streams[] = {home_, stream()};
  for (const StreamRef& on : streams) {
    for (const std::size_t size_bytes :
         {std::size_t{1}, std::size_t{512}, std::size_t{4096}, kMiB, kMiB + 1, 64 * kMiB}) {
      SCOPED_TRACE(size_bytes);
      for (int i = 0; i < 3; ++i) allocator_.free(allocate(size_bytes, on));
      const std::uint64_t calls_before = device_calls();
      void* data = nullptr;
      const Steps taking = steps_of([&] { data = allocator_.allocate(size_bytes, on); });
      const Steps giving = steps_of([&] { allocator_.free(data); });
      EXPECT_EQ(taking.locked, locked_of_gate());
      EXPECT_EQ(giving.locked, 1 + locked_of_gate());
      EXPECT_EQ(taking.fences + giving.fences, 0U);
      EXPECT_EQ(taking.system_calls + giving.system_calls, 0U);
      EXPECT_EQ(device_calls(), calls_before) << "calls of the device";
      RecordProperty("instructions_" + std::to_string(size_bytes),
                     std::to_string(taking.instructions + giving.instructions));
    }
  }
}

// A chain goes to the depot and comes back under one lock, so most blocks of a thread that only
// allocates, or only frees, are hits too.
TEST_F(Hits, ManyBlocksTakeALockOnlyWhenAChainIsFull) {
  constexpr int kBlocks = 160;  // two chains and a half
  std::vector<void*> blocks(kBlocks);
  for (int round = 0; round < 2; ++round) {  // the first one makes the blocks
    for (void*& block : blocks) block = allocator_.allocate(4096, home_);
    if (round == 1) break;
    for (void* block : blocks) allocator_.free(block);
  }
  const Steps giving = steps_of([&] {
    for (void* block : blocks) allocator_.free(block);
  });
  const Steps taking = steps_of([&] {
    for (void*& block : blocks) block = allocator_.allocate(4096, home_);
  });
  EXPECT_LE(giving.locked, kBlocks * (1 + locked_of_gate()) + 8 * 3U);
  EXPECT_LE(taking.locked, kBlocks * locked_of_gate() + 8 * 3U);
  for (void* block : blocks) allocator_.free(block);
}

// The heap lock, once taken and once given up, is all that a miss shares with other threads as long
// as the heap has free memory for it; it looks at no other thread's counters either.
TEST_F(Hits, AMissThatFindsFreeMemoryTakesOneLock) {
  std::vector<void*> blocks;
  for (std::size_t count = 1; count <= 100; ++count) {
    blocks.push_back(allocator_.allocate(count * 512, home_));
  }
  for (void* data : std::exchange(blocks, {})) allocator_.free(data);
  // All is one free block now, and there are nodes for what will be cut from it.
  static_cast<void>(allocator_.largest_free_block_bytes(0));
  std::uint64_t alone = 0;
  for (const bool with_others : {false, true}) {
    if (with_others) {
      for (int count = 0; count < 8; ++count) {
        resting_.emplace_back().run([&] { allocator_.free(allocate(512, home_)); });
      }
      for (int count = 0; count < 50; ++count) {  // this thread alone moves from now on
        blocks.push_back(allocator_.allocate(static_cast<std::size_t>(3 + count) * 512, home_));
      }
    }
    void* data = nullptr;
    const std::size_t size_bytes = with_others ? 1024 : 2048;  // that no cache holds
    const Steps steps = steps_of([&] { data = allocator_.allocate(size_bytes, home_); });
    EXPECT_EQ(steps.locked, 2 + locked_of_gate());
    EXPECT_EQ(steps.system_calls + steps.fences, 0U);
    if (!with_others) alone = steps.instructions;
    if (with_others) {
      EXPECT_LT(steps.instructions, 2 * alone);
    }
    blocks.push_back(data);
  }
  for (void* data : blocks) allocator_.free(data);
}

// A sweep keeps others out of their caches only while it takes the chains: it looks at the first
// block of each, however long they are.
TEST(Sweeps, TakeChainsWithoutWalkingAlongThem) {
  if (const char* why = cannot_step()) GTEST_SKIP() << why;
  const auto steps_with = [](std::size_t block_count) {
    DepotRoom room(256 * kMiB);
    StreamDepot depot(room);
    ThreadCounters counters;
    const DeviceCounters of_device;
    const auto cache = std::make_unique<StreamCache>(StreamRef{}, depot, counters, of_device);
    const auto blocks = std::make_unique<Block[]>(block_count);
    for (std::size_t i = 0; i < block_count; ++i) {
      blocks[i].size_bytes = 512;
      std::size_t left_bytes = 0;
      EXPECT_TRUE(cache->put(&blocks[i], &left_bytes, nullptr));
    }
    ChainList taken;
    std::size_t taken_bytes = 0;
    const Steps steps = steps_of([&] { taken_bytes = cache->take_all(taken); });
    EXPECT_EQ(taken_bytes, block_count * 512);
    std::size_t found = 0;
    for (; !taken.empty(); ++found) static_cast<void>(taken.pop());
    EXPECT_EQ(found, block_count);
    return steps.instructions;
  };
  static_cast<void>(steps_with(1));  // the first call looks its function up
  EXPECT_EQ(steps_with(1), steps_with(60));
}

}  // namespace
}  // namespace limbo::testing
