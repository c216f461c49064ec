// What the allocator's tests share: an allocator on a simulated device of its own.
#pragma once

#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include "allocator/allocator.h"
#include "tests/support/sandbox.h"
#include "tests/unit/sim_support.h"

namespace limbo::testing {

inline constexpr std::size_t kAllSizes = static_cast<std::size_t>(SizeKind::kAll);
inline constexpr std::size_t kSmallSizes = static_cast<std::size_t>(SizeKind::kSmall);
inline constexpr std::size_t kLargeSizes = static_cast<std::size_t>(SizeKind::kLarge);

// A simulated machine of its own, of the given shape.
class OwnMachine {
 public:
  OwnMachine(int devices, int memory_mb) {
    ::setenv("LIMBO_SIM_DEVICES", std::to_string(devices).c_str(), 1);
    ::setenv("LIMBO_SIM_MEMORY_MB", std::to_string(memory_mb).c_str(), 1);
  }
  ~OwnMachine() {
    ::unsetenv("LIMBO_SIM_DEVICES");
    ::unsetenv("LIMBO_SIM_MEMORY_MB");
  }
  OwnMachine(const OwnMachine&) = delete;
  OwnMachine& operator=(const OwnMachine&) = delete;

 private:
  const Sandbox sandbox_;
};

// After every test: the invariants hold, and with everything freed nothing stays with the device.
class AllocatorTest : public ::testing::Test {
 protected:
  explicit AllocatorTest(int devices = 1, int memory_mb = 2048) : machine_(devices, memory_mb) {}

  void TearDown() override {
    allocator_.check_invariants();
    allocator_.empty_cache();
    allocator_.check_invariants();
    for (int device = 0; device < sim_->device_count(); ++device) {
      const DeviceStats stats = allocator_.stats(device);
      EXPECT_EQ(stats.allocated_bytes[kAllSizes].current, 0);
      EXPECT_EQ(stats.active_bytes[kAllSizes].current, 0);
      EXPECT_EQ(stats.requested_bytes[kAllSizes].current, 0);
      EXPECT_EQ(stats.reserved_bytes[kAllSizes].current, 0);
      EXPECT_EQ(stats.limbo_blocks, 0);
    }
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

  const OwnMachine machine_;
  const std::unique_ptr<SimDevice> sim_ = make_sim();
  const StreamRef home_{0, nullptr};
  Allocator allocator_{*sim_};
};

// A lender whose answers the test decides.
class FakeLender : public Lender {
 public:
  bool collect() override {
    ++collects;
    return on_collect && on_collect();
  }
  bool collect_thoroughly(int /*device*/, std::chrono::milliseconds /*at_most*/) override {
    ++thorough_collects;
    return on_collect_thoroughly && on_collect_thoroughly();
  }
  bool may_return_piece(std::uint64_t piece_id) override {
    asked.push_back(piece_id);
    return !on_may_return || on_may_return(piece_id);
  }
  void piece_returned(std::uint64_t piece_id) override { returned.push_back(piece_id); }
  bool wait_for_unmapped_pieces(int /*device*/, std::chrono::milliseconds /*at_most*/) override {
    ++unmap_waits;
    return on_unmap_wait && on_unmap_wait();
  }
  std::string describe_holders(int /*device*/) override { return holders; }

  std::function<bool()> on_collect;
  std::function<bool()> on_collect_thoroughly;
  std::function<bool(std::uint64_t)> on_may_return;
  std::function<bool()> on_unmap_wait;
  std::string holders;
  int collects = 0;
  int thorough_collects = 0;
  int unmap_waits = 0;
  std::vector<std::uint64_t> asked;
  std::vector<std::uint64_t> returned;
};

// Ends what the let-go list holds; how many blocks it had.
inline int drain_let_go(Allocator& allocator) {
  int count = 0;
  for (Block* block = allocator.take_let_go(); block != nullptr; ++count) {
    Block* next = Allocator::next_let_go(block);
    allocator.unpin(block);
    block = next;
  }
  return count;
}

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
