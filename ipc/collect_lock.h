// The collect lock: guards every private record of a producer. A caller that must not wait asks the
// holder to look again instead, and goes on.
//
// | word             | to               | who                                | order           |
// |------------------|------------------|------------------------------------|-----------------|
// | 0                | locked           | lock, try_lock_or_ask              | acquire         |
// | locked           | locked, again    | try_lock_or_ask, meeting a holder  | release         |
// | locked, again    | locked           | unlock_or_again: "look again"      | acquire         |
// | locked           | 0                | unlock_or_again                    | release         |
//
// `again` is lost to nobody: it is set only while `locked` is, and unlocking is a compare-and-swap
// that fails when it is set, however late. Whoever holds the lock, for whatever reason, then runs
// the pass that was asked for. The release of `again` pairs with the holder's acquire, so that the
// pass sees what the asker had seen.
//
// Private to the process: a death here takes the word along.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <thread>

namespace limbo {

class CollectLock {
 public:
  // True: locked by the caller. False: somebody else holds it and will look again.
  [[nodiscard]] bool try_lock_or_ask() noexcept {
    std::uint32_t seen = word_.load(std::memory_order_relaxed);
    for (;;) {
      if ((seen & kLocked) == 0) {
        if (word_.compare_exchange_weak(seen, kLocked, std::memory_order_acquire,
                                        std::memory_order_relaxed)) {
          return true;
        }
      } else if (word_.compare_exchange_weak(seen, kLocked | kAgain, std::memory_order_release,
                                             std::memory_order_relaxed)) {
        return false;
      }
    }
  }

  // Waits. Holders make no call that can block, so it is short.
  void lock() noexcept {
    for (;;) {
      std::uint32_t seen = word_.load(std::memory_order_relaxed);
      if ((seen & kLocked) == 0) {
        if (word_.compare_exchange_weak(seen, kLocked, std::memory_order_acquire,
                                        std::memory_order_relaxed)) {
          return;
        }
      } else {
        word_.wait(seen, std::memory_order_relaxed);
      }
    }
  }

  // Waits until then at most.
  [[nodiscard]] bool try_lock_until(std::chrono::steady_clock::time_point deadline) noexcept {
    for (;;) {
      std::uint32_t seen = 0;
      if (word_.compare_exchange_strong(seen, kLocked, std::memory_order_acquire,
                                        std::memory_order_relaxed)) {
        return true;
      }
      if (std::chrono::steady_clock::now() >= deadline) return false;
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
  }

  // False: still locked; somebody asked, and the caller must look again first.
  [[nodiscard]] bool unlock_or_again() noexcept {
    std::uint32_t seen = kLocked;
    if (word_.compare_exchange_strong(seen, 0, std::memory_order_release,
                                      std::memory_order_relaxed)) {
      word_.notify_all();
      return true;
    }
    word_.exchange(kLocked, std::memory_order_acquire);
    return false;
  }

 private:
  static constexpr std::uint32_t kLocked = 1;
  static constexpr std::uint32_t kAgain = 2;
  std::atomic<std::uint32_t> word_{0};
};

}  // namespace limbo
