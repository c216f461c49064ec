#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <thread>
#include <vector>

#include "allocator/error.h"
#include "ipc/collect_lock.h"
#include "ipc/shared_memory.h"
#include "tests/support/balance.h"
#include "tests/support/eventually.h"

namespace limbo {
namespace {

constexpr std::size_t kSize = 8192;

class LedgerMemory : public testing::BalancedTest {};

std::string refusal(int fd, std::size_t size_bytes, ReceiverMay receiver) {
  try {
    (void)SharedMemory::map_received("test", fd, size_bytes, receiver);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kNoChannel);
    return error.what();
  }
  ADD_FAILURE() << "accepted";
  return {};
}

TEST_F(LedgerMemory, ReceiverOfAReadOnlyOneCannotWriteInAnyWay) {
  const SharedMemory memory = SharedMemory::create("test", kSize, ReceiverMay::kRead);
  const int fd = ::dup(memory.fd());
  EXPECT_EQ(::mmap(nullptr, kSize, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0), MAP_FAILED);
  EXPECT_LT(::write(fd, "x", 1), 0);
  EXPECT_NE(::ftruncate(fd, 4096), 0);
  EXPECT_NE(::ftruncate(fd, 2 * kSize), 0);
  EXPECT_NE(::fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE), 0);
  const SharedMemory received = SharedMemory::map_received("test", fd, kSize, ReceiverMay::kRead);
  EXPECT_FALSE(received.writable());
  EXPECT_NE(::mprotect(received.data(), kSize, PROT_READ | PROT_WRITE), 0);
  static_cast<char*>(memory.data())[5] = 'v';  // its maker goes on writing
  EXPECT_EQ(static_cast<const char*>(received.data())[5], 'v');
}

TEST_F(LedgerMemory, ReceiverOfAWritableOneCannotResizeOrSeal) {
  const SharedMemory memory = SharedMemory::create("test", kSize, ReceiverMay::kWrite);
  const SharedMemory received =
      SharedMemory::map_received("test", ::dup(memory.fd()), kSize, ReceiverMay::kWrite);
  static_cast<char*>(received.data())[5] = 'v';
  EXPECT_EQ(static_cast<const char*>(memory.data())[5], 'v');
  EXPECT_NE(::ftruncate(received.fd(), 4096), 0);
  EXPECT_NE(::fcntl(received.fd(), F_ADD_SEALS, F_SEAL_FUTURE_WRITE), 0);
}

TEST_F(LedgerMemory, SizesAndSealsAreChecked) {
  const SharedMemory memory = SharedMemory::create("test", kSize, ReceiverMay::kWrite);
  EXPECT_NE(refusal(::dup(memory.fd()), 2 * kSize, ReceiverMay::kWrite).find("8192"),
            std::string::npos);
  EXPECT_NE(refusal(::dup(memory.fd()), kSize, ReceiverMay::kRead).find("lacks seals"),
            std::string::npos);
  const int unsealed = ::memfd_create("unsealed", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  ASSERT_EQ(::ftruncate(unsealed, kSize), 0);
  EXPECT_NE(refusal(unsealed, kSize, ReceiverMay::kWrite).find("lacks seals"), std::string::npos);
  refusal(-1, kSize, ReceiverMay::kWrite);
}

TEST_F(LedgerMemory, MakingTooMuchOfItIsAnErrorAndLeavesNothing) {
  EXPECT_THROW((void)SharedMemory::create("test", std::size_t{1} << 60, ReceiverMay::kWrite),
               Error);
}

// A fork child would go on writing into its parent's tables.
TEST_F(LedgerMemory, ForkChildDoesNotInheritTheMapping) {
  const SharedMemory memory = SharedMemory::create("test", kSize, ReceiverMay::kWrite);
  const pid_t child = ::fork();
  if (child == 0) {
    // msync of a range that is not mapped fails.
    ::_exit(::msync(memory.data(), kSize, MS_ASYNC) != 0 && errno == ENOMEM ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

TEST_F(LedgerMemory, MovesItsOwnership) {
  SharedMemory memory = SharedMemory::create("test", kSize, ReceiverMay::kWrite);
  const void* data = memory.data();
  SharedMemory other = std::move(memory);
  EXPECT_EQ(other.data(), data);
  memory = std::move(other);
  EXPECT_EQ(memory.data(), data);
  EXPECT_EQ(memory.size_bytes(), kSize);
}

TEST(CollectLock, SecondCallerAsksInsteadOfWaiting) {
  CollectLock lock;
  ASSERT_TRUE(lock.try_lock_or_ask());
  EXPECT_FALSE(lock.try_lock_or_ask());
  EXPECT_FALSE(lock.try_lock_or_ask());
  EXPECT_FALSE(lock.unlock_or_again());  // one pass for both
  EXPECT_TRUE(lock.unlock_or_again());
  EXPECT_TRUE(lock.try_lock_or_ask());
  EXPECT_TRUE(lock.unlock_or_again());
}

// Trace 18: asked after the holder has looked and before it unlocks.
TEST(CollectLock, LateAskIsNotLost) {
  CollectLock lock;
  ASSERT_TRUE(lock.try_lock_or_ask());
  // the holder's pass is over ...
  EXPECT_FALSE(lock.try_lock_or_ask());
  EXPECT_FALSE(lock.unlock_or_again());
  EXPECT_TRUE(lock.unlock_or_again());
}

TEST(CollectLock, WaitsAtMostSoLong) {
  CollectLock lock;
  ASSERT_TRUE(lock.try_lock_or_ask());
  EXPECT_FALSE(lock.try_lock_until(std::chrono::steady_clock::now()));
  std::thread waiter([&] {
    EXPECT_TRUE(lock.try_lock_until(std::chrono::steady_clock::now() + std::chrono::seconds(60)));
    EXPECT_TRUE(lock.unlock_or_again());
  });
  EXPECT_TRUE(lock.unlock_or_again());
  waiter.join();
}

// Every ask is followed by a look that begins after it, whoever makes it.
TEST(CollectLock, ManyThreads) {
  CollectLock lock;
  std::uint64_t guarded = 0;              // by the lock
  std::uint64_t seen = 0;                 // by the last look
  std::atomic<std::uint64_t> changes{0};  // what looks are about
  const auto look = [&] {
    ++guarded;
    seen = changes.load(std::memory_order_relaxed);
  };
  const auto leave = [&] {
    while (!lock.unlock_or_again()) look();
  };
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 5000; ++i) {
        changes.fetch_add(1, std::memory_order_relaxed);
        if (t == 0) {
          lock.lock();
          look();
          leave();
        } else if (lock.try_lock_or_ask()) {
          look();
          leave();
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(seen, changes.load());
  EXPECT_GE(guarded, 5000U);
  EXPECT_TRUE(lock.try_lock_or_ask());
}

}  // namespace
}  // namespace limbo
