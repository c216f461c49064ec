// Many threads: caches swept from outside, threads that end, wrong frees at once, misses at once.
#include <pthread.h>
#include <sched.h>
#include <unistd.h>

#include <atomic>
#include <barrier>
#include <fstream>
#include <iterator>
#include <mutex>
#include <string>
#include <thread>

#include "allocator/gate.h"
#include "allocator/thread_registry.h"
#include "tests/support/eventually.h"
#include "tests/unit/allocator_support.h"

namespace limbo::testing {
namespace {

class AllocatorThreads : public AllocatorTest {
 protected:
  AllocatorThreads() : AllocatorTest(1, 64) {}

  static void run(int count, const std::function<void(int)>& work) {
    std::vector<std::thread> threads;
    for (int index = 0; index < count; ++index) threads.emplace_back(work, index);
    for (std::thread& thread : threads) thread.join();
  }
};

// Two threads meet as closely as they can, again and again: without a compare-and-swap some of these
// frees are both accepted.
TEST_F(AllocatorThreads, OfConcurrentDoubleFreesExactlyOneIsAccepted) {
  constexpr int kRounds = kThreadSanitizer ? 5'000 : 100'000;
  std::atomic<std::byte*> data{nullptr};
  std::atomic<int> arrived{0};
  std::atomic<int> accepted{0};
  std::atomic<int> refused{0};
  std::atomic<bool> broken{false};
  const auto meet = [&](int count) {
    arrived.fetch_add(1);
    for (int spins = 0; arrived.load() < count; ++spins) {
      if (spins > 1'000) std::this_thread::yield();
    }
  };
  run(2, [&](int index) {
    for (int round = 0; round < kRounds; ++round) {
      if (index == 0) {
        broken = broken || accepted != round;
        if (!broken) data = allocate(4096);
      }
      meet(4 * round + 2);
      if (broken) break;
      try {
        allocator_.free(data);
        ++accepted;
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::kDoubleFree);
        ++refused;
      }
      meet(4 * round + 4);
    }
  });
  EXPECT_EQ(accepted, kRounds);
  EXPECT_EQ(refused, kRounds);
}

TEST_F(AllocatorThreads, AnIdleThreadsCacheIsEmptiedFromOutside) {
  std::barrier step(2);
  std::thread idle([&] {
    std::vector<std::byte*> blocks;
    for (int count = 0; count < 100; ++count) blocks.push_back(allocate(4096));
    for (std::byte* data : blocks) allocator_.free(data);
    step.arrive_and_wait();  // the caches are full
    step.arrive_and_wait();  // they have been emptied
    allocator_.free(allocate(4096));
  });
  step.arrive_and_wait();
  EXPECT_EQ(current(&DeviceStats::inactive_split), 101);
  allocator_.empty_cache();
  EXPECT_EQ(reserved(), 0);
  step.arrive_and_wait();
  idle.join();
}

TEST_F(AllocatorThreads, AThreadsEndGivesItsCacheBack) {
  run(3, [&](int) {
    std::vector<std::byte*> blocks;
    for (int count = 0; count < 50; ++count) blocks.push_back(allocate(4096));
    for (std::byte* data : blocks) allocator_.free(data);
  });
  std::size_t whole = 0;
  for (const SegmentView& segment : allocator_.snapshot()) {
    EXPECT_TRUE(segment.blocks.size() == 1 || segment.blocks.size() > 50U);
    whole += segment.blocks.size() == 1 ? 1 : 0;
  }
  EXPECT_GE(whole, 1U);
  EXPECT_EQ(allocator_.largest_free_block_bytes(0), 2 * kMiB);
}

// Thread-local objects of the program are destroyed before the cache is given back, some key
// destructors run after it: both may free.
TEST_F(AllocatorThreads, FreesAtAThreadsEndAreAccepted) {
  struct AtExit {
    Allocator* allocator = nullptr;
    void* data = nullptr;
    ~AtExit() {
      if (allocator != nullptr) allocator->free(data);
    }
  };
  allocator_.free(allocate(512));  // the allocator's own key comes first, so that ours runs later
  pthread_key_t late = 0;
  static Allocator* late_allocator = nullptr;
  late_allocator = &allocator_;
  ASSERT_EQ(pthread_key_create(&late,
                               [](void* data) {
                                 late_allocator->free(data);
                                 late_allocator->free(late_allocator->allocate(4096, {0, nullptr}));
                               }),
            0);
  std::thread([&] {
    thread_local AtExit at_exit;
    at_exit.allocator = &allocator_;
    at_exit.data = allocate(4096);
    pthread_setspecific(late, allocate(8192));
  }).join();
  EXPECT_EQ(allocated(), 0);
  pthread_key_delete(late);
}

TEST_F(AllocatorThreads, BlocksWanderBetweenThreadsThroughTheDepot) {
  // One thread allocates, the other frees: what it frees must come back without new segments.
  constexpr int kBlocks = 20'000;
  std::atomic<std::byte*> slot{nullptr};
  std::thread consumer([&] {
    for (int count = 0; count < kBlocks; ++count) {
      std::byte* data = nullptr;
      while ((data = slot.exchange(nullptr)) == nullptr) std::this_thread::yield();
      allocator_.free(data);
    }
  });
  for (int count = 0; count < kBlocks; ++count) {
    std::byte* data = allocate(64 << 10);
    while (slot.load() != nullptr) std::this_thread::yield();
    slot = data;
  }
  consumer.join();
  EXPECT_LE(allocator_.stats(0).reserved_bytes[kAllSizes].peak,
            static_cast<std::int64_t>(20 * kMiB));
}

TEST_F(AllocatorThreads, HitsGoOnWhileAnotherThreadIsInTheDriver) {
  std::byte* data = allocate(4096);
  sim_->faults().add("allocate:1=hang");
  std::thread slow([&] { allocator_.free(allocate(30 * kMiB)); });
  ASSERT_TRUE(sim_->faults().wait_for_hanging(1, kPatience));
  for (int count = 0; count < 100; ++count) {
    allocator_.free(data);
    EXPECT_EQ(allocate(4096), data);
  }
  std::byte* miss = allocate(1 << 20);  // served from the rest of the segment
  allocator_.free(miss);
  EXPECT_EQ(sim_->faults().hanging(), 1);
  sim_->faults().release_hangs();
  slow.join();
  allocator_.free(data);
}

// One thread holds the only free segment while it is on its way back to the driver; the other finds
// nothing, and must wait for the outcome instead of reporting out-of-memory.
TEST_F(AllocatorThreads, AThreadWaitsForMemoryThatAnotherOneIsReturning) {
  std::byte* data = allocate(60 * kMiB);
  allocator_.free(data);
  sim_->faults().add("free:1=hang");
  std::thread returns([&] { allocator_.empty_cache(); });
  ASSERT_TRUE(sim_->faults().wait_for_hanging(1, kPatience));
  std::atomic<bool> done{false};
  std::thread needs([&] {
    std::byte* mine = allocate(50 * kMiB);
    done = true;
    allocator_.free(mine);
  });
  EXPECT_TRUE(eventually([&] { return allocator_.stats(0).num_alloc_retries == 1; }));
  EXPECT_FALSE(done);
  sim_->faults().release_hangs();
  returns.join();
  needs.join();
  EXPECT_EQ(allocator_.stats(0).num_ooms, 0);
}

// Two threads want the same room; there is enough for both in turn. Nobody may fail.
TEST_F(AllocatorThreads, MissesAtOnceDoNotFailSpuriously) {
  std::atomic<int> failures{0};
  run(4, [&](int index) {
    std::uint32_t random = 77 + static_cast<std::uint32_t>(index);
    for (int round = 0; round < 60; ++round) {
      random = random * 1664525 + 1013904223;
      // At most 12 MiB each, always of another size: at most 48 of 64 MiB are ever needed.
      const std::size_t size = 10 * kMiB + (random >> 12) % 2048 * 1024;
      try {
        allocator_.free(allocate(size));
      } catch (const OutOfMemory& failure) {
        ++failures;
        ADD_FAILURE() << failure.what();
      }
    }
  });
  EXPECT_EQ(failures, 0);
}

// Puts the calling thread on one processor, which `unhurried` shares: that one runs there only while
// the caller sleeps.
class OneProcessor {
 public:
  explicit OneProcessor(std::thread& unhurried) {
    ::sched_getaffinity(0, sizeof before_, &before_);
    cpu_set_t here;
    CPU_ZERO(&here);
    CPU_SET(::sched_getcpu(), &here);
    EXPECT_EQ(::sched_setaffinity(0, sizeof here, &here), 0);
    EXPECT_EQ(::pthread_setaffinity_np(unhurried.native_handle(), sizeof here, &here), 0);
    const sched_param no_priority{};
    EXPECT_EQ(::pthread_setschedparam(unhurried.native_handle(), SCHED_IDLE, &no_priority), 0);
  }
  ~OneProcessor() { ::sched_setaffinity(0, sizeof before_, &before_); }
  OneProcessor(const OneProcessor&) = delete;
  OneProcessor& operator=(const OneProcessor&) = delete;

 private:
  cpu_set_t before_{};
};

bool sleeps(pid_t thread) {
  std::ifstream file("/proc/self/task/" + std::to_string(thread) + "/stat");
  std::string text((std::istreambuf_iterator<char>(file)), {});
  const std::size_t name_end = text.rfind(')');
  return name_end != std::string::npos && text.compare(name_end, 3, ") S") == 0;
}

// One thread is about to merge what its cache holds, and gets no further for a while. What it has is
// free memory all the time: the other must not fail for want of it.
TEST_F(AllocatorThreads, WhatAThreadTakesFromItsCacheIsMissedByNobody) {
  std::byte* mine = allocate(20 * kMiB);
  std::atomic<pid_t> merging{0};
  std::barrier ready(2);
  std::thread merges([&] {
    for (int count = 0; count < 2; ++count)
      allocator_.free(allocate(40 * kMiB));  // then it is cached
    ready.arrive_and_wait();
    ready.arrive_and_wait();
    merging = ::gettid();
    allocator_.free(allocate(30 * kMiB));
  });
  ready.arrive_and_wait();
  {
    const OneProcessor one(merges);
    std::unique_lock registry(thread_registry::mutex());
    ready.arrive_and_wait();
    EXPECT_TRUE(eventually([&] { return merging != 0 && sleeps(merging); }));
    registry.unlock();
    std::byte* data = nullptr;
    EXPECT_NO_THROW(data = allocate(10 * kMiB));
    allocator_.free(data);
  }
  merges.join();
  allocator_.free(mine);
}

TEST_F(AllocatorThreads, SeveralThreadsRunCallbacksAtOnce) {
  std::barrier inside(2);
  std::atomic<int> runs{0};
  allocator_.add_free_memory_callback([&] {
    if (runs++ < 2) inside.arrive_and_wait();  // hangs if one of them had to wait outside
    return false;
  });
  run(2, [&](int) { allocator_.free(allocate(4096)); });
  EXPECT_GE(runs, 2);
}

TEST_F(AllocatorThreads, StatisticsAreExactInTheMiddleOfEverything) {
  std::atomic<bool> stop{false};
  std::vector<std::thread> threads;
  for (int index = 0; index < 3; ++index) {
    threads.emplace_back([&, index] {
      const std::size_t size = 512U << index;
      while (!stop) {
        std::byte* first = allocate(size);
        std::byte* second = allocate(3 * kMiB);
        allocator_.free(first);
        allocator_.free(second);
      }
    });
  }
  for (int count = 0; count < 300; ++count) {
    allocator_.check_invariants();
    if (count % 10 == 0) allocator_.empty_cache();
  }
  stop = true;
  for (std::thread& thread : threads) thread.join();
}

TEST_F(AllocatorThreads, AnAllocatorsEndLeavesNothingInThreadsThatGoOn) {
  for (int count = 0; count < 3; ++count) {
    Allocator other(*sim_);
    other.free(other.allocate(4096, home_));
    allocator_.free(allocate(4096));
  }
  EXPECT_EQ(sim_->balance().allocated, 1U);
}

}  // namespace
}  // namespace limbo::testing
