// What a thread's cache holds while another thread lacks memory.
#include <algorithm>
#include <vector>

#include "tests/unit/allocator_support.h"
#include "tests/unit/worker.h"

namespace limbo::testing {
namespace {

class AllocatorSweeps : public AllocatorTest {
 protected:
  // Four blocks of each size are in the thread's cache, which keeps as many; two fill a segment.
  void cache(Worker& owner, std::initializer_list<std::size_t> sizes) {
    owner.run([&] {
      for (int round = 0; round < 2; ++round) {  // its first free makes the cache
        std::vector<std::byte*> blocks;
        for (const std::size_t size_bytes : sizes) {
          for (int count = 0; count < 4; ++count) blocks.push_back(allocate(size_bytes));
        }
        for (std::byte* data : blocks) allocator_.free(data);
      }
    });
  }
};

TEST_F(AllocatorSweeps, WhatOthersCacheIsLeftToThemAsLongAsItIsLittle) {
  Worker other;
  cache(other, {kMiB});
  EXPECT_EQ(reserved(), 4 * static_cast<std::int64_t>(kMiB));
  std::byte* data = allocate(4096);
  EXPECT_EQ(reserved(), 6 * static_cast<std::int64_t>(kMiB));
  other.run([&] { allocator_.free(allocate(kMiB)); });
  EXPECT_EQ(allocator_.stats(0).num_device_alloc, 3);
  allocator_.free(data);
}

TEST_F(AllocatorSweeps, WhereItIsMuchItIsTakenBeforeMemoryIs) {
  Worker other;
  cache(other, {kMiB, kMiB - 512, kMiB - 1024});
  const std::int64_t before = reserved();
  EXPECT_EQ(before, 12 * static_cast<std::int64_t>(kMiB));
  std::byte* data = allocate(4096);
  EXPECT_EQ(reserved(), before);
  allocator_.free(data);
}

TEST_F(AllocatorSweeps, ALargeRequestTakesAnythingBeforeMemory) {
  Worker other;
  other.run([&] { allocator_.free(allocate(12 * kMiB)); });
  std::byte* data = allocate(11 * kMiB);
  EXPECT_EQ(reserved(), 12 * static_cast<std::int64_t>(kMiB));
  allocator_.free(data);
}

TEST_F(AllocatorSweeps, UnderALimitNothingIsLeftToOthers) {
  Worker other;
  cache(other, {kMiB});
  allocator_.set_limit_bytes(0, 4 * kMiB);
  std::byte* data = allocate(4096);
  EXPECT_EQ(reserved(), 4 * static_cast<std::int64_t>(kMiB));
  allocator_.free(data);
}

// What one thread allocates and another frees.
class AllocatorFlows : public AllocatorTest {
 protected:
  // A block of the flow, which is not freed here.
  std::vector<std::byte*> allocate_some(int count) {
    std::vector<std::byte*> blocks;
    for (int i = 0; i < count; ++i) blocks.push_back(allocate(4096));
    return blocks;
  }
};

TEST_F(AllocatorFlows, AThreadThatFreesNothingTakesWhatOthersLeaveInTheDepot) {
  const std::vector<std::byte*> blocks = allocate_some(256);  // half a segment
  Worker other;
  other.run([&] {
    for (std::byte* data : blocks) allocator_.free(data);
  });
  // The free lists have the other half, of which none was handed out yet, and the first that was
  // freed: with that the other thread got its cache.
  for (std::byte* data : allocate_some(2)) {
    EXPECT_NE(std::find(blocks.begin(), blocks.end(), data), blocks.end());
    allocator_.free(data);
  }
}

// The depot is empty at that moment, but what it gets is better handed on in chains than put into the
// free lists: more blocks are wanted under way.
TEST_F(AllocatorFlows, BesideAnotherThreadSomeMemoryIsTakenBeforeTheDepotIsEmptied) {
  Worker other;
  const auto hand_over = [&](const std::vector<std::byte*>& blocks) {
    other.run([&] {
      for (std::byte* data : blocks) allocator_.free(data);
    });
  };
  hand_over(allocate_some(512));
  const auto two_mib = 2 * static_cast<std::int64_t>(kMiB);
  EXPECT_EQ(reserved(), two_mib);
  // Another size finds nothing in the free lists; what is in the depot is left there four times.
  std::vector<std::byte*> held;
  for (std::int64_t segments = 2; segments <= 5; ++segments) {
    held.push_back(allocate(kMiB));
    EXPECT_EQ(reserved(), segments * two_mib);
    held.push_back(allocate(kMiB));
    EXPECT_EQ(reserved(), segments * two_mib);
  }
  // Then it is merged, as far as other threads do not hold parts of it.
  held.push_back(allocate(256 * 1024));
  EXPECT_EQ(reserved(), 5 * two_mib);
  for (std::byte* data : held) allocator_.free(data);
}

// Allocations pass the caches by, frees do not.
TEST_F(AllocatorFlows, WhereAllocationsPassTheDepotByItDoesNotGrow) {
  Worker other;
  other.run([&] { allocator_.free(allocate(4096)); });
  allocator_.free(allocate(4096));
  const PoolId pool{1, 0};
  allocator_.begin_allocate_to_pool(0, pool, [](StreamHandle) { return false; });
  for (int count = 0; count < 50000; ++count) allocator_.free(allocate(4096));
  EXPECT_LE(reserved(), static_cast<std::int64_t>(4 * kMiB));
  allocator_.end_allocate_to_pool(0, pool);
  allocator_.release_pool(0, pool);
}

// The sizes change: what was left in the depot is used before it has become much.
TEST_F(AllocatorFlows, OfManySizesLeaveABoundedPartInTheDepot) {
  Worker other;
  for (std::size_t size_bytes = 4096; size_bytes <= 64 * 1024; size_bytes += 512) {
    std::vector<std::byte*> blocks;
    for (std::size_t bytes = 0; bytes < 4 * kMiB; bytes += size_bytes) {
      blocks.push_back(allocate(size_bytes));
    }
    other.run([&] {
      for (std::byte* data : blocks) allocator_.free(data);
    });
  }
  EXPECT_LE(reserved(), static_cast<std::int64_t>(32 * kMiB));
}

}  // namespace
}  // namespace limbo::testing
