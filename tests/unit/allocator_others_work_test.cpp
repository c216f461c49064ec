// What a thread that finds no memory makes of other threads' work on the device.
#include <atomic>
#include <thread>

#include "tests/support/eventually.h"
#include "tests/unit/allocator_support.h"

namespace limbo::testing {
namespace {

class AllocatorOthersWork : public AllocatorTest {
 protected:
  AllocatorOthersWork() : AllocatorTest(2, 64) { allocator_.set_lender(&lender_); }
  void TearDown() override {
    lender_.on_may_return = {};
    AllocatorTest::TearDown();
  }
  FakeLender lender_;
};

// In the last moment of its attempt another thread gives a piece back to the driver, and it finishes
// something of its own, on another device.
TEST_F(AllocatorOthersWork, IsNotMistakenForItsOwnOnAnotherDevice) {
  const StreamRef user{1, sim_->create_stream(1)};
  std::byte* const elsewhere = allocate(4096, {1, nullptr});
  ASSERT_TRUE(allocator_.record_stream(elsewhere, user));
  allocator_.set_limit_bytes(0, 40 * kMiB);
  std::byte* const kept = allocate(20 * kMiB);
  std::byte* const leaving = allocate(20 * kMiB);
  const std::uint64_t kept_piece = allocator_.find(kept)->piece_id;
  allocator_.free(kept);
  allocator_.free(leaving);
  std::atomic<bool> leaves{false};
  std::atomic<bool> may_leave{false};
  lender_.on_may_return = [&](std::uint64_t piece) {
    if (piece == kept_piece) return false;
    leaves = true;
    while (!may_leave) std::this_thread::yield();
    return true;
  };
  std::thread returns([&] { allocator_.empty_cache(0); });
  ASSERT_TRUE(eventually([&] { return leaves.load(); }));
  lender_.on_unmap_wait = [&] {
    if (lender_.unmap_waits == 2) {  // an attempt's last: behind it only free blocks are looked for
      may_leave = true;
      returns.join();
      allocator_.free(elsewhere);
    }
    return false;
  };
  std::byte* data = nullptr;
  EXPECT_NO_THROW(data = allocate(20 * kMiB, stream()));
  EXPECT_GE(lender_.unmap_waits, 2);
  may_leave = true;
  if (returns.joinable()) returns.join();
  allocator_.free(data);
}

}  // namespace
}  // namespace limbo::testing
