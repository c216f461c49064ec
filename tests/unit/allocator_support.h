// What the allocator's tests share: an allocator on a simulated device of its own.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "allocator/allocator.h"
#include "tests/unit/sim_support.h"

namespace limbo::testing {

inline constexpr std::size_t kAllSizes = static_cast<std::size_t>(SizeKind::kAll);
inline constexpr std::size_t kSmallSizes = static_cast<std::size_t>(SizeKind::kSmall);
inline constexpr std::size_t kLargeSizes = static_cast<std::size_t>(SizeKind::kLarge);

// After every test: the invariants hold, and with everything freed nothing stays with the device.
class AllocatorTest : public ::testing::Test {
 protected:
  void TearDown() override {
    allocator_.check_invariants();
    allocator_.empty_cache();
    allocator_.check_invariants();
    const DeviceStats stats = allocator_.stats(0);
    EXPECT_EQ(stats.allocated_bytes[kAllSizes].current, 0);
    EXPECT_EQ(stats.active_bytes[kAllSizes].current, 0);
    EXPECT_EQ(stats.reserved_bytes[kAllSizes].current, 0);
    EXPECT_EQ(stats.limbo_blocks, 0);
    EXPECT_EQ(sim_->balance().allocated, 0U);
  }

  [[nodiscard]] StreamRef stream() { return {0, sim_->create_stream(0)}; }
  [[nodiscard]] std::byte* allocate(std::size_t size_bytes) { return allocate(size_bytes, home_); }
  [[nodiscard]] std::byte* allocate(std::size_t size_bytes, StreamRef on) {
    return static_cast<std::byte*>(allocator_.allocate(size_bytes, on));
  }
  [[nodiscard]] std::int64_t allocated() { return current(&DeviceStats::allocated_bytes); }
  [[nodiscard]] std::int64_t active() { return current(&DeviceStats::active_bytes); }
  [[nodiscard]] std::int64_t reserved() { return current(&DeviceStats::reserved_bytes); }
  [[nodiscard]] std::int64_t current(StatByKind DeviceStats::*which) {
    return (allocator_.stats(0).*which)[kAllSizes].current;
  }

  const std::unique_ptr<SimDevice> sim_ = make_sim();
  const StreamRef home_{0, nullptr};
  Allocator allocator_{*sim_};
};

// The code that `call` throws; fails where it throws none.
inline ErrorCode error_code(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.code();
  }
  ADD_FAILURE() << "no error";
  return ErrorCode::kInternal;
}

#define EXPECT_ERROR(statement, expected) \
  EXPECT_EQ(::limbo::testing::error_code([&] { statement; }), ErrorCode::expected)

// The text of the out-of-memory error that `call` throws; fails where it throws none.
inline std::string out_of_memory(const std::function<void()>& call) {
  try {
    call();
  } catch (const OutOfMemory& failure) {
    return failure.what();
  }
  ADD_FAILURE() << "no error";
  return {};
}

}  // namespace limbo::testing
