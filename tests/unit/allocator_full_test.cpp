// Threads that together hold at most what there is, all blocks of one size and of one stream: whoever
// asks for one finds it, wherever the others' frees have put it.
#include <atomic>
#include <random>
#include <thread>
#include <vector>

#include "allocator/gate.h"
#include "tests/unit/allocator_support.h"
#include "tests/unit/small_caches.h"

namespace limbo::testing {
namespace {

// A cache has one limit for all devices.
class AllocatorFullCache : protected SmallCaches, public AllocatorTest {
 protected:
  AllocatorFullCache() : AllocatorTest(2) {}
};

TEST_F(AllocatorFullCache, GivesBackWhatItHoldsOfEveryDevice) {
  const StreamRef other{1, nullptr};
  std::byte* const first = allocate(2 * kMiB, other);
  std::byte* const second = allocate(2 * kMiB, other);
  std::vector<std::byte*> blocks;
  for (int count = 0; count < 5; ++count) blocks.push_back(allocate(2 * kMiB));
  allocator_.free(first);  // with that the stream has a cache
  for (std::byte* data : blocks) allocator_.free(data);
  const auto unmerged = [&] { return allocator_.stats(0).inactive_split_bytes[kAllSizes].current; };
  EXPECT_GT(unmerged(), 0);
  allocator_.free(second);
  EXPECT_EQ(unmerged(), 0);
  allocator_.check_invariants();
}

template <class Caches>
class Full : protected Caches, public AllocatorTest {
 protected:
  static constexpr int kThreads = 4;
  static constexpr int kBlocks = 128;  // that there is memory for
  static constexpr int kRounds = kThreadSanitizer ? 500 : 5000;

  // How many allocations failed.
  int run(std::size_t size_bytes) {
    fill(size_bytes);
    std::vector<std::thread> threads;
    for (int index = 0; index < kThreads; ++index) {
      threads.emplace_back([this, index, size_bytes] { live(index, size_bytes); });
    }
    for (std::thread& thread : threads) thread.join();
    return failures_;
  }

 private:
  void fill(std::size_t size_bytes) {
    std::vector<std::byte*> all;
    allocator_.set_limit_bytes(0, kBlocks * size_bytes);
    while (all.size() < kBlocks) all.push_back(allocate(size_bytes));
    EXPECT_THROW(static_cast<void>(allocate(size_bytes)), OutOfMemory);
    for (std::byte* data : all) allocator_.free(data);
  }

  // What it frees it keeps to itself, as far as its cache holds it, and what it allocates others have
  // freed.
  void live(int seed, std::size_t size_bytes) {
    std::mt19937_64 random(static_cast<unsigned>(seed));
    std::vector<std::byte*> held;
    for (int round = 0; round < kRounds; ++round) {
      for (std::size_t more = random() % kBlocks; more > 0 && take_place(); --more) {
        try {
          held.push_back(allocate(size_bytes));
        } catch (const OutOfMemory&) {
          ++failures_;
          places_.fetch_add(1);
        }
      }
      while (!held.empty()) {
        allocator_.free(held.back());
        held.pop_back();
        places_.fetch_add(1);
      }
    }
  }

  // Whether a block more may live.
  bool take_place() {
    if (places_.fetch_sub(1) > 0) return true;
    places_.fetch_add(1);
    return false;
  }

  std::atomic<int> places_{kBlocks};
  std::atomic<int> failures_{0};
};

struct UsualCaches {};
using AllocatorFull = Full<UsualCaches>;
using AllocatorFullSmallCaches = Full<SmallCaches>;

TEST_F(AllocatorFull, BlocksThatGoThroughTheDepot) {
  EXPECT_EQ(run(std::size_t{64} << 10), 0);
}

TEST_F(AllocatorFull, LargeBlocksInCaches) {
  EXPECT_EQ(run(2 * kMiB), 0);
}

TEST_F(AllocatorFullSmallCaches, BlocksThatTheDepotHasNoRoomFor) {
  EXPECT_EQ(run(kMiB / 2), 0);
}

TEST_F(AllocatorFullSmallCaches, LargeBlocksThatTheCacheHasNoRoomFor) {
  EXPECT_EQ(run(2 * kMiB), 0);
}

TEST_F(AllocatorFullSmallCaches, BlocksThatNoCacheHolds) {
  EXPECT_EQ(run(4 * kMiB), 0);
}

}  // namespace
}  // namespace limbo::testing
