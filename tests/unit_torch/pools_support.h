// Tests of private pools as torch uses them.
#pragma once

#include <cstddef>

#include "hooks/adapter.h"
#include "hooks/install.h"
#include "tests/support/sizes.h"
#include "tests/unit_torch/torch_support.h"

namespace limbo::testing {

class PoolsOfTorch : public TorchTest {
 protected:
  static constexpr c10::MempoolId_t kPool{0, 1};

  static bool everything(cudaStream_t /*stream*/) { return true; }

  void SetUp() override {
    TorchTest::SetUp();
    install();
    adapter().emptyCache({0, 0});  // what other tests have left
  }
  void TearDown() override {
    adapter().emptyCache(kPool);
    adapter().emptyCache({0, 0});
    EXPECT_EQ(adapter().getPoolUseCount(0, kPool), 0);
    EXPECT_EQ(adapter().getDeviceStats(0).allocation[kAll].current, 0);
    EXPECT_EQ(adapter().getDeviceStats(0).reserved_bytes[kAll].current, 0);
    TorchTest::TearDown();
  }

  // As use_mem_pool does.
  [[nodiscard]] static void* allocate_in_pool(std::size_t size_bytes) {
    adapter().beginAllocateToPool(0, kPool, everything);
    void* data = nullptr;
    try {
      data = adapter().raw_alloc(size_bytes);
    } catch (...) {
      adapter().endAllocateToPool(0, kPool);
      adapter().releasePool(0, kPool);
      throw;
    }
    adapter().endAllocateToPool(0, kPool);
    adapter().releasePool(0, kPool);
    return data;
  }
  // As the destructor of MemPool does.
  static void end_pool() {
    EXPECT_EQ(adapter().getPoolUseCount(0, kPool), 1);
    adapter().setUseOnOOM(0, kPool, false);
    adapter().releasePool(0, kPool);
    adapter().emptyCache(kPool);
  }
  [[nodiscard]] static std::size_t segments_of(c10::MempoolId_t pool) {
    return adapter().snapshot(pool, true).segments.size();
  }
};

}  // namespace limbo::testing
