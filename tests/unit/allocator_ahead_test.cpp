// Fetching ahead: where several threads want the heap lock at once, who has it takes more blocks of a
// size that it has come for before.
#include <gtest/gtest.h>
#include <pthread.h>
#include <sched.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <thread>
#include <vector>

#include "allocator/depot.h"
#include "allocator/stats_counters.h"
#include "allocator/thread_cache.h"
#include "ipc/sharing.h"
#include "tests/support/child_process.h"
#include "tests/unit/allocator_support.h"

namespace limbo::testing {
namespace {

constexpr std::size_t kKiB = 1024;

std::vector<std::uint32_t> misses(StreamCache& cache, std::size_t size_bytes, int count) {
  std::vector<std::uint32_t> ahead;
  for (int i = 0; i < count; ++i) ahead.push_back(cache.count_miss(size_bytes));
  return ahead;
}

TEST(FetchingAhead, BeginsWithNothingAndDoubles) {
  DepotRoom room(sizes::kMiB);
  StreamDepot depot(room);
  ThreadCounters counters;
  DeviceCounters of_device;
  StreamCache cache({0, nullptr}, depot, counters, of_device);
  using Ahead = std::vector<std::uint32_t>;
  EXPECT_EQ(misses(cache, 512, 8), (Ahead{0, 1, 2, 4, 8, 16, 32, 32}));
  EXPECT_EQ(misses(cache, 4 * kKiB, 8), (Ahead{0, 1, 2, 4, 8, 16, 32, 32}));
  EXPECT_EQ(misses(cache, 64 * kKiB, 5), (Ahead{0, 1, 2, 2, 2})) << "at most 128 KiB";
  EXPECT_EQ(misses(cache, 256 * kKiB, 3), (Ahead{0, 0, 0}));
  ChainList all;
  EXPECT_EQ(cache.take_all(all), 0U);
  EXPECT_EQ(misses(cache, 512, 3), (Ahead{0, 1, 2})) << "from the beginning after a sweep";
}

class AllocatorAhead : public AllocatorTest {
 protected:
  [[nodiscard]] std::int64_t inactive_blocks() { return current(&DeviceStats::inactive_split); }
  [[nodiscard]] std::int64_t segments() { return current(&DeviceStats::segment); }

  // Threads that only allocate, until `enough` or until they have so many blocks. Whether it was
  // enough at any moment. Then everything is freed.
  [[nodiscard]] bool while_threads_allocate(const std::function<bool()>& enough) {
    constexpr std::size_t kBlocksOfEach = 20'000;
    std::vector<std::vector<std::byte*>> live(4);
    std::atomic<bool> over{false};
    std::atomic<int> running{static_cast<int>(live.size())};
    std::vector<std::thread> threads;
    for (auto& mine : live) {
      threads.emplace_back([&] {
        allocator_.free(allocate(512));  // the thread gets a cache
        while (!over && mine.size() < kBlocksOfEach) mine.push_back(allocate(512));
        --running;
      });
    }
    bool found = false;
    while (!found && running > 0) found = enough();
    over = true;
    for (std::thread& thread : threads) thread.join();
    for (const auto& mine : live) {
      for (std::byte* data : mine) allocator_.free(data);
    }
    return found;
  }

  [[nodiscard]] static bool one_processor() {
    cpu_set_t processors;
    return sched_getaffinity(0, sizeof processors, &processors) == 0 && CPU_COUNT(&processors) < 2;
  }
};

// Nobody frees meanwhile, so what lies free beside the end of each segment was fetched ahead. (Four
// more: each thread freed one block.)
TEST_F(AllocatorAhead, IsSeenWhereThreadsMeet) {
  if (one_processor()) GTEST_SKIP() << "threads meet at the heap lock on two processors";
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::minutes(1);
  bool seen = false;
  while (!seen && std::chrono::steady_clock::now() < deadline) {
    seen = while_threads_allocate([&] {
      const DeviceStats stats = allocator_.stats(0);
      return stats.inactive_split[kAllSizes].current > stats.segment[kAllSizes].current + 4;
    });
    allocator_.empty_cache();
  }
  EXPECT_TRUE(seen);
}

TEST_F(AllocatorAhead, DoesNotHappenToAThreadAlone) {
  allocator_.free(allocate(512));
  std::vector<std::byte*> live;
  for (int count = 0; count < 10'000; ++count) live.push_back(allocate(512));
  EXPECT_LE(inactive_blocks(), segments());
  for (std::byte* data : live) allocator_.free(data);
}

// A program has all of a process's thread-specific keys, so that no thread of this one gets a cache.
LIMBO_CHILD_ROLE(threads_without_keys) {
  for (pthread_key_t key = 0; pthread_key_create(&key, nullptr) == 0;) continue;
  Allocator& allocator = process_allocator();
  std::vector<std::thread> threads;
  for (int thread = 0; thread < 4; ++thread) {
    threads.emplace_back([&] {
      for (int count = 0; count < 20'000; ++count) {
        allocator.free(allocator.allocate(512, {0, nullptr}));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  allocator.check_invariants();
  child.send("done");
  ::_exit(0);
}

TEST(FetchingAheadWithoutCaches, IsLeftAlone) {
  const Sandbox sandbox;
  ChildProcess child("threads_without_keys");
  EXPECT_EQ(child.receive(), "done");
  EXPECT_TRUE(child.wait().success());
}

// What was fetched ahead is found by whoever needs it, as all that caches hold.
class AllocatorAheadInLittleMemory : public AllocatorTest {
 protected:
  AllocatorAheadInLittleMemory() : AllocatorTest(1, 64) {}
};

TEST_F(AllocatorAheadInLittleMemory, LosesNothing) {
  for (int round = 0; round < 20; ++round) {
    std::vector<std::vector<std::byte*>> live(4);
    std::vector<std::thread> threads;
    for (auto& mine : live) {
      threads.emplace_back([&] {
        for (int count = 0; count < 2'000; ++count) mine.push_back(allocate(4 * kKiB));
      });
    }
    for (std::thread& thread : threads) thread.join();
    allocator_.check_invariants();
    for (const auto& mine : live) {
      for (std::byte* data : mine) allocator_.free(data);
    }
    allocator_.free(allocate(60 * sizes::kMiB));
  }
}

}  // namespace
}  // namespace limbo::testing
