// Tests of private pools.
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

#include "tests/unit/allocator_support.h"

namespace limbo::testing {

class Pools : public AllocatorTest {
 protected:
  static constexpr PoolId kPool{0, 1};
  static constexpr PoolId kOther{0, 2};
  static constexpr PoolId kNowhere{9, 9};

  static bool everything(StreamHandle /*stream*/) { return true; }

  explicit Pools(int devices = 1, int memory_mb = 2048) : AllocatorTest(devices, memory_mb) {}

  void begin(PoolId pool, int device = 0) {
    allocator_.begin_allocate_to_pool(device, pool, everything);
  }
  // As use_mem_pool does.
  void end_and_release(PoolId pool, int device = 0) {
    allocator_.end_allocate_to_pool(device, pool);
    allocator_.release_pool(device, pool);
  }
  [[nodiscard]] std::byte* allocate_in(PoolId pool, std::size_t size_bytes) {
    begin(pool);
    std::byte* data = allocate(size_bytes);
    end_and_release(pool);
    return data;
  }
  [[nodiscard]] PoolId pool_of(const void* data) {
    for (const SegmentView& segment : allocator_.snapshot()) {
      const auto* base = static_cast<const std::byte*>(segment.base);
      if (data >= base && data < base + segment.size_bytes) return segment.pool;
    }
    ADD_FAILURE() << "in no segment";
    return kNowhere;
  }
  [[nodiscard]] std::size_t segments_of(PoolId pool, int device = 0) {
    const std::vector<SegmentView> all = allocator_.snapshot(device);
    return static_cast<std::size_t>(
        std::count_if(all.begin(), all.end(), [&](const auto& seen) { return seen.pool == pool; }));
  }
};

}  // namespace limbo::testing
