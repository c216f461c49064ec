// Peaks of several threads: exact where few of them take turns, never too low, and too high by a
// bounded number of bytes where many do.
#include <deque>

#include "allocator/stats_counters.h"
#include "tests/unit/allocator_support.h"
#include "tests/unit/worker.h"

namespace limbo::testing {
namespace {

class AllocatorPeaks : public AllocatorTest {
 protected:
  [[nodiscard]] std::int64_t bytes_of(const std::byte* data) {
    return static_cast<std::int64_t>(allocator_.find(data)->size_bytes);
  }
  [[nodiscard]] std::int64_t peak() { return allocator_.stats(0).allocated_bytes[kAllSizes].peak; }
};

TEST_F(AllocatorPeaks, OfTwoThreadsInTurnAreExact) {
  Worker other;
  for (const std::size_t size_bytes : {std::size_t{4096}, 3 * kMiB, 100 * kMiB}) {
    allocator_.empty_cache();
    allocator_.reset_peak_stats(0);
    for (int round = 0; round < 5; ++round) {
      // Another size each time: a miss.
      std::byte* data = allocate(size_bytes - static_cast<std::size_t>(round) * 512);
      other.run([&] { allocator_.free(data); });
    }
    EXPECT_EQ(peak(), static_cast<std::int64_t>(size_bytes));
  }
}

TEST_F(AllocatorPeaks, OfOneThreadAmongManyThatRestAreExact) {
  std::deque<Worker> others(8);
  for (Worker& other : others) {
    other.run([&] {
      for (std::size_t size = 512; size <= 8 * kMiB; size *= 2) allocator_.free(allocate(size));
    });
  }
  allocator_.reset_peak_stats(0);
  std::int64_t now = 0;
  std::int64_t highest = 0;
  std::deque<std::pair<std::byte*, std::int64_t>> live;
  for (std::size_t step = 0; step < 600; ++step) {
    const std::size_t size_bytes = 512 * (1 + step * step % 5000);
    std::byte* data = allocate(size_bytes);
    live.emplace_back(data, bytes_of(data));
    now += live.back().second;
    highest = std::max(highest, now);
    while (live.size() > 1 + step * 7 % 90) {
      allocator_.free(live.front().first);
      now -= live.front().second;
      live.pop_front();
    }
  }
  EXPECT_EQ(peak(), highest);
  for (const auto& [data, size_bytes] : live) allocator_.free(data);
}

TEST_F(AllocatorPeaks, OfManyThreadsAreTooHighByLittle) {
  std::deque<Worker> workers(8);
  std::vector<std::vector<std::byte*>> live(workers.size());
  std::int64_t now = 0;
  std::int64_t highest = 0;
  for (std::size_t step = 0; step < 4000; ++step) {
    const std::size_t index = step * 5 % workers.size();
    const std::size_t size_bytes = 512 * (1 + step * step % 300);
    workers[index].run([&] {
      // Each gives back all it has from time to time: then others may have as much.
      if (live[index].size() > step * 13 % 70) {
        for (std::byte* data : live[index]) {
          now -= bytes_of(data);
          allocator_.free(data);
        }
        live[index].clear();
      }
      live[index].push_back(allocate(size_bytes));
      now += bytes_of(live[index].back());
      highest = std::max(highest, now);
    });
  }
  const auto cached = static_cast<std::int64_t>(32 * kMiB);  // no cache held more here
  EXPECT_GE(peak(), highest);
  EXPECT_LE(peak(), highest + kWindowBytes + cached);
  for (auto& blocks : live) {
    for (std::byte* data : blocks) allocator_.free(data);
  }
}

TEST_F(AllocatorPeaks, OfABlockThatTwoThreadsTakeInTurnAreExact) {
  Worker other;
  other.run([&] { allocator_.free(allocate(512)); });  // it has counters, and has not moved since
  allocator_.free(allocate(100 * kMiB));               // too large for a cache
  allocator_.reset_peak_stats(0);
  allocator_.free(allocate(100 * kMiB));
  other.run([&] { allocator_.free(allocate(100 * kMiB)); });
  EXPECT_EQ(peak(), static_cast<std::int64_t>(100 * kMiB));
}

// What one thread gives up and another one takes counts once, however large it is.
TEST_F(AllocatorPeaks, OfManyThreadsWithALargeBlockAreTooHighByLittle) {
  std::deque<Worker> workers(8);
  std::vector<std::byte*> live;
  const auto all_miss = [&](std::size_t rounds) {
    for (std::size_t step = 0; step < rounds * workers.size(); ++step) {
      workers[step % workers.size()].run([&] { live.push_back(allocate(512)); });
    }
  };
  all_miss(20);  // many threads are at work
  std::byte* large = nullptr;
  workers[0].run([&] { large = allocate(100 * kMiB); });
  allocator_.reset_peak_stats(0);
  const std::int64_t before = allocated();
  for (std::size_t index = 0; index < workers.size(); ++index) {
    workers[index].run([&] { allocator_.free(large); });
    workers[(index + 1) % workers.size()].run([&] { large = allocate(100 * kMiB); });
  }
  EXPECT_GE(peak(), before);
  EXPECT_LE(peak(), before + kWindowBytes);
  allocator_.free(large);
  for (std::byte* data : live) allocator_.free(data);
}

// No central change comes by itself where blocks go round from thread to thread.
TEST_F(AllocatorPeaks, OfAFlowFromThreadToThreadAreTooHighByLittle) {
  Worker other;
  std::deque<std::byte*> live;
  const auto flow = [&](int blocks) {
    for (int count = 0; count < blocks; count += 100) {
      for (int i = 0; i < 100; ++i) live.push_back(allocate(4096));
      if (live.size() < 1000) continue;
      other.run([&] {
        for (int i = 0; i < 100; ++i) {
          allocator_.free(live.front());
          live.pop_front();
        }
      });
    }
  };
  flow(20000);
  allocator_.reset_peak_stats(0);
  flow(40000);
  EXPECT_GE(peak(), std::int64_t{1000} * 4096);
  EXPECT_LE(peak(), std::int64_t{1000} * 4096 + kWindowBytes + static_cast<std::int64_t>(kMiB));
  for (std::byte* data : live) allocator_.free(data);
}

}  // namespace
}  // namespace limbo::testing
