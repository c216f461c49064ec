// Pools with memory from somebody else's allocator.
#include "allocator/provider_foreign.h"

#include <deque>
#include <functional>
#include <utility>
#include <vector>

#include "tests/unit/allocator_support.h"

namespace limbo::testing {
namespace {

constexpr PoolId kForeignPool{3, 0};

// Somebody else's allocator: the simulated device's memory, some bytes behind a multiple of 2 MiB.
class Foreign {
 public:
  Foreign(SimDevice& sim, std::size_t shift_bytes) : sim_(sim), shift_bytes_(shift_bytes) {}

  [[nodiscard]] std::shared_ptr<Provider> provider() {
    // The token stands for the shared allocator that torch hands over.
    const auto token = std::make_shared<int>(0);
    alive_ = token;
    return std::make_shared<ProviderForeign>(
        [this, token](int device, std::size_t size_bytes) -> void* {
          ++takes;
          asked_bytes = size_bytes;
          if (full) return nullptr;
          void* base = sim_.try_allocate(device, size_bytes + shift_bytes_);
          return base == nullptr ? nullptr : static_cast<std::byte*>(base) + shift_bytes_;
        },
        [this, token](int device, void* memory) {
          ++gives;
          if (broken)
            throw Error(ErrorCode::kDeviceError, "The other allocator takes nothing back.");
          sim_.free(device, static_cast<std::byte*>(memory) - shift_bytes_);
        });
  }
  [[nodiscard]] bool alive() const { return !alive_.expired(); }

  int takes = 0;
  int gives = 0;
  std::size_t asked_bytes = 0;
  bool full = false;
  bool broken = false;

 private:
  SimDevice& sim_;
  const std::size_t shift_bytes_;
  std::weak_ptr<int> alive_;
};

class PoolsWithProvider : public AllocatorTest {
 protected:
  // Lives until the test's clean-up has given back what came from it.
  [[nodiscard]] Foreign& foreign_allocator(std::size_t shift_bytes) {
    return foreign_.emplace_back(*sim_, shift_bytes);
  }

  [[nodiscard]] std::byte* allocate_in(PoolId pool, std::size_t size_bytes) {
    allocator_.begin_allocate_to_pool(0, pool, [](StreamHandle) { return true; });
    std::byte* data = nullptr;
    try {
      data = allocate(size_bytes);
    } catch (...) {
      allocator_.end_allocate_to_pool(0, pool);
      allocator_.release_pool(0, pool);
      throw;
    }
    allocator_.end_allocate_to_pool(0, pool);
    allocator_.release_pool(0, pool);
    return data;
  }

 private:
  std::deque<Foreign> foreign_;
};

TEST_F(PoolsWithProvider, SegmentsComeFromItAndGoBackToIt) {
  Foreign& foreign = foreign_allocator(0);
  allocator_.retain_pool(0, kForeignPool, foreign.provider());
  EXPECT_EQ(foreign.takes, 0);
  std::byte* first = allocate_in(kForeignPool, kMiB);
  std::byte* second = allocate_in(kForeignPool, kMiB);
  EXPECT_EQ(foreign.takes, 1);  // both in one segment of 2 MiB
  EXPECT_EQ(foreign.asked_bytes, 2 * kMiB);
  EXPECT_EQ(reserved(), static_cast<std::int64_t>(2 * kMiB));
  std::byte* plain = allocate(kMiB);
  EXPECT_EQ(foreign.takes, 1);
  allocator_.free(first);
  allocator_.free(second);
  allocator_.release_pool(0, kForeignPool);
  EXPECT_EQ(foreign.gives, 0);
  allocator_.empty_cache(0, kForeignPool);
  EXPECT_EQ(foreign.gives, 1);
  allocator_.free(plain);
}

TEST_F(PoolsWithProvider, ItLivesUntilItsLastSegmentIsBack) {
  Foreign& foreign = foreign_allocator(0);
  allocator_.retain_pool(0, kForeignPool, foreign.provider());
  std::byte* data = allocate_in(kForeignPool, 4 * kMiB);
  allocator_.release_pool(0, kForeignPool);
  allocator_.empty_cache(0, kForeignPool);
  EXPECT_TRUE(foreign.alive());
  allocator_.free(data);
  EXPECT_TRUE(foreign.alive());
  allocator_.empty_cache();
  EXPECT_EQ(foreign.gives, 1);
  EXPECT_FALSE(foreign.alive());
}

TEST_F(PoolsWithProvider, WithoutASegmentItGoesAtTheRelease) {
  Foreign& foreign = foreign_allocator(0);
  allocator_.retain_pool(0, kForeignPool, foreign.provider());
  EXPECT_TRUE(foreign.alive());
  allocator_.release_pool(0, kForeignPool);
  EXPECT_FALSE(foreign.alive());
}

TEST_F(PoolsWithProvider, MemoryNeedNotBeAligned) {
  Foreign& foreign = foreign_allocator(4096);
  allocator_.retain_pool(0, kForeignPool, foreign.provider());
  std::byte* first = allocate_in(kForeignPool, 3 * kMiB);
  EXPECT_EQ(foreign.takes, 2);  // the first one went back
  EXPECT_EQ(foreign.gives, 1);
  EXPECT_EQ(foreign.asked_bytes, 22 * kMiB);
  std::byte* second = allocate_in(kForeignPool, 64 * kMiB);
  EXPECT_EQ(foreign.takes, 3);
  std::byte* small = allocate_in(kForeignPool, 700);
  for (std::byte* data : {first, second, small}) {
    const auto view = allocator_.find(data + 10);
    ASSERT_TRUE(view);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(view->piece_base) % (2 * kMiB), 0U);
    sim_->fill({0, nullptr}, data, 7, view->size_bytes / 4);  // all of it is there
  }
  sim_->wait_until_idle();
  allocator_.check_invariants();
  for (std::byte* data : {first, second, small}) allocator_.free(data);
  allocator_.release_pool(0, kForeignPool);
  allocator_.empty_cache();
  EXPECT_EQ(foreign.takes, foreign.gives);
}

TEST_F(PoolsWithProvider, WhereItIsFullThePoolIs) {
  Foreign& foreign = foreign_allocator(0);
  allocator_.retain_pool(0, kForeignPool, foreign.provider());
  foreign.full = true;
  static_cast<void>(out_of_memory([&] { static_cast<void>(allocate_in(kForeignPool, kMiB)); }));
  allocator_.check_invariants();
  foreign.full = false;
  allocator_.free(allocate_in(kForeignPool, kMiB));
  allocator_.release_pool(0, kForeignPool);
}

TEST_F(PoolsWithProvider, WhatItDoesNotTakeBackStaysUsable) {
  for (const std::size_t shift_bytes : {std::size_t{0}, std::size_t{512}}) {
    Foreign& foreign = foreign_allocator(shift_bytes);
    allocator_.retain_pool(0, kForeignPool, foreign.provider());
    std::byte* data = allocate_in(kForeignPool, 4 * kMiB);
    allocator_.free(data);
    allocator_.release_pool(0, kForeignPool);
    foreign.broken = true;
    EXPECT_ERROR(allocator_.empty_cache(0, kForeignPool), kDeviceError);
    allocator_.check_invariants();
    EXPECT_EQ(allocate_in(kForeignPool, 4 * kMiB), data);
    allocator_.free(data);
    foreign.broken = false;
    allocator_.empty_cache(0, kForeignPool);
    EXPECT_FALSE(foreign.alive());
    EXPECT_EQ(reserved(), 0);
  }
}

// A provider whose code allocates here too, on the thread and the stream that the route accepts.
class Nested final : public Provider {
 public:
  explicit Nested(std::function<void*(std::size_t)> make, std::function<void(void*)> give)
      : make_(std::move(make)), give_(std::move(give)) {}
  void* make_piece(int /*device*/, std::size_t size_bytes) override { return make_(size_bytes); }
  void return_piece(int /*device*/, void* base, std::size_t /*size_bytes*/) override {
    give_(base);
  }

 private:
  const std::function<void*(std::size_t)> make_;
  const std::function<void(void*)> give_;
};

TEST_F(PoolsWithProvider, WhatItAllocatesItselfIsNoneOfThePools) {
  std::vector<std::byte*> scratch;
  allocator_.retain_pool(0, kForeignPool,
                         std::make_shared<Nested>(
                             [&](std::size_t size_bytes) {
                               scratch.push_back(allocate(4096));
                               return sim_->try_allocate(0, size_bytes);
                             },
                             [&](void* base) { sim_->free(0, base); }));
  std::byte* data = allocate_in(kForeignPool, kMiB);
  ASSERT_EQ(scratch.size(), 1U);
  EXPECT_TRUE(allocator_.find(scratch[0])->pool.is_default());
  EXPECT_EQ(allocator_.find(data)->pool, kForeignPool);
  allocator_.free(scratch[0]);
  allocator_.free(data);
  allocator_.release_pool(0, kForeignPool);
}

TEST_F(PoolsWithProvider, MemoryOfTheAllocatorItselfIsRefused) {
  int given = 0;
  const auto foreign = std::make_shared<ProviderForeign>(
      [&](int, std::size_t size_bytes) -> void* { return allocate(size_bytes); },
      [&](int, void* memory) {
        ++given;
        allocator_.free(memory);
      });
  allocator_.retain_pool(0, kForeignPool, foreign);
  std::byte* beside = allocate(5 * kMiB);  // so that what it gives is not aligned
  for (const std::size_t size_bytes : {std::size_t{700}, 3 * kMiB, 30 * kMiB}) {
    EXPECT_ERROR(static_cast<void>(allocate_in(kForeignPool, size_bytes)), kBadArgument);
    allocator_.check_invariants();
  }
  EXPECT_GE(given, 3);
  EXPECT_EQ(allocated(), static_cast<std::int64_t>(5 * kMiB));
  EXPECT_TRUE(allocator_.snapshot(0, kForeignPool).empty());
  allocator_.free(beside);
  allocator_.release_pool(0, kForeignPool);
}

TEST_F(PoolsWithProvider, MemoryThatIsRefusedMayBeKeptByItsMaker) {
  std::byte* given = nullptr;
  allocator_.retain_pool(
      0, kForeignPool,
      std::make_shared<Nested>(
          [&](std::size_t size_bytes) -> void* {
            given = allocate(size_bytes);
            return given;
          },
          [](void*) { throw Error(ErrorCode::kDeviceError, "The maker takes nothing back."); }));
  EXPECT_ERROR(static_cast<void>(allocate_in(kForeignPool, kMiB)), kBadArgument);
  allocator_.check_invariants();
  EXPECT_TRUE(allocator_.snapshot(0, kForeignPool).empty());
  EXPECT_EQ(allocated(), static_cast<std::int64_t>(2 * kMiB));
  allocator_.free(given);
  allocator_.release_pool(0, kForeignPool);
}

// The provider holds the only work under way: there is nobody to wait for.
TEST_F(PoolsWithProvider, ItDoesNotWaitForItself) {
  std::vector<std::uint64_t> tries;
  const auto fail = [&](std::size_t) -> void* {
    sim_->reset_calls();
    static_cast<void>(out_of_memory([&] { static_cast<void>(allocate(4096 * kMiB)); }));
    tries.push_back(sim_->calls(CallKind::kAllocate));
    return nullptr;
  };
  allocator_.retain_pool(0, kForeignPool, std::make_shared<Nested>(fail, [](void*) {}));
  static_cast<void>(out_of_memory([&] { static_cast<void>(allocate_in(kForeignPool, kMiB)); }));
  ASSERT_FALSE(tries.empty());
  EXPECT_EQ(tries[0], 2U);  // before room is made, and once behind it
  allocator_.release_pool(0, kForeignPool);
}

TEST_F(PoolsWithProvider, ASecondOneForThePoolIsRefused) {
  Foreign& foreign = foreign_allocator(0);
  Foreign& other = foreign_allocator(0);
  allocator_.retain_pool(0, kForeignPool, foreign.provider());
  EXPECT_ERROR(allocator_.retain_pool(0, kForeignPool, other.provider()), kBadArgument);
  EXPECT_FALSE(other.alive());
  EXPECT_EQ(allocator_.pool_use_count(0, kForeignPool), 1);
  allocator_.retain_pool(0, kForeignPool);
  allocator_.release_pool(0, kForeignPool);
  allocator_.release_pool(0, kForeignPool);
}

}  // namespace
}  // namespace limbo::testing
