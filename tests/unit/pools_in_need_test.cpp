// Private pools where there is little memory, and on several devices.
#include "tests/unit/pools_support.h"

namespace limbo::testing {
namespace {

// ---- little memory ------------------------------------------------------------------------------

class PoolsInNeed : public Pools {
 protected:
  PoolsInNeed() : Pools(1, 80) {}
};

TEST_F(PoolsInNeed, OutOfMemoryNamesWhatTheyHave) {
  allocator_.retain_pool(0, kPool);
  std::byte* used = allocate_in(kPool, 40 * kMiB);
  allocator_.free(allocate_in(kPool, 30 * kMiB));
  const std::string text = out_of_memory([&] { static_cast<void>(allocate(40 * kMiB)); });
  EXPECT_NE(text.find("with 40.00 MiB allocated in private pools"), std::string::npos) << text;
  EXPECT_NE(text.find("Private pools keep 30.00 MiB that is not allocated."), std::string::npos)
      << text;
  allocator_.free(used);
  allocator_.release_pool(0, kPool);
}

TEST_F(PoolsInNeed, AReleasedPoolsMemoryIsReturnedBeforeOutOfMemory) {
  allocator_.free(allocate_in(kPool, 60 * kMiB));
  std::byte* data = allocate(60 * kMiB);
  EXPECT_EQ(segments_of(kPool), 0U);
  allocator_.free(data);
}

TEST_F(PoolsInNeed, ServeTheDefaultPoolOnlyWhereTheyMay) {
  allocator_.retain_pool(0, kPool);
  allocator_.retain_pool(0, kOther);
  allocator_.set_use_on_oom(0, kOther, true);
  std::byte* first = allocate_in(kPool, 40 * kMiB);
  std::byte* second = allocate_in(kOther, 40 * kMiB);
  allocator_.free(first);
  static_cast<void>(out_of_memory([&] { static_cast<void>(allocate(30 * kMiB)); }));
  allocator_.free(second);
  std::byte* served = allocate(30 * kMiB);
  EXPECT_EQ(served, second);
  try {
    static_cast<void>(allocator_.pin(served));
    ADD_FAILURE() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kNotLendable);
    EXPECT_NE(std::string(error.what()).find("use_on_oom"), std::string::npos) << error.what();
  }
  static_cast<void>(out_of_memory([&] { static_cast<void>(allocate_in(kPool, 60 * kMiB)); }));
  allocator_.end_allocate_to_pool(0, kPool);
  allocator_.release_pool(0, kPool);
  allocator_.free(served);
  EXPECT_EQ(allocate_in(kOther, 20 * kMiB), second);
  allocator_.free(second);
  allocator_.set_use_on_oom(0, kOther, false);
  static_cast<void>(out_of_memory([&] { static_cast<void>(allocate(30 * kMiB)); }));
  allocator_.release_pool(0, kPool);
  allocator_.release_pool(0, kOther);
}

TEST_F(PoolsInNeed, AReleasedPoolDoesNotServe) {
  allocator_.retain_pool(0, kPool);
  allocator_.set_use_on_oom(0, kPool, true);
  std::byte* kept = allocate_in(kPool, 40 * kMiB);
  allocator_.release_pool(0, kPool);
  std::byte* rest = allocate(30 * kMiB);
  allocator_.free(kept);
  std::byte* data = allocate(40 * kMiB);
  EXPECT_EQ(pool_of(data), PoolId{});
  allocator_.free(data);
  allocator_.free(rest);
}

// ---- several devices ----------------------------------------------------------------------------

class PoolsOnDevices : public Pools {
 protected:
  PoolsOnDevices() : Pools(4, 512) {}
};

TEST_F(PoolsOnDevices, AreOneForEachDevice) {
  begin(kPool, 0);
  std::byte* here = allocate(4096, {0, nullptr});
  std::byte* there = allocate(4096, {2, nullptr});
  EXPECT_EQ(segments_of(kPool, 0), 1U);
  EXPECT_EQ(segments_of(kPool, 2), 0U);
  begin(kPool, 2);
  std::byte* inside = allocate(4096, {2, nullptr});
  EXPECT_EQ(segments_of(kPool, 2), 1U);
  EXPECT_EQ(allocator_.pool_use_count(2, kPool), 1);
  EXPECT_EQ(allocator_.pool_use_count(3, kPool), 0);
  EXPECT_EQ(allocator_.snapshot(-1, kPool).size(), 2U);
  end_and_release(kPool, 0);
  std::byte* still = allocate(4096, {2, nullptr});
  EXPECT_EQ(allocator_.pool_live_allocations(2, kPool).size(), 2U);
  end_and_release(kPool, 2);
  for (std::byte* data : {here, there, inside, still}) allocator_.free(data);
  for (int device = 0; device < 4; ++device) allocator_.empty_cache(device, kPool);
  EXPECT_TRUE(allocator_.snapshot(-1, kPool).empty());
}

}  // namespace
}  // namespace limbo::testing
