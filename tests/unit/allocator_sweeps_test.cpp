// What a thread's cache holds while another thread lacks memory.
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

}  // namespace
}  // namespace limbo::testing
