// The heap lock: what a mutex is, for sections of some hundred instructions that many threads want
// at once. Who finds it taken first looks on for some microseconds, in which its holder is most
// probably done; sleeping and waking would take many times as long as the section. Then it sleeps.
#pragma once

#include <atomic>

namespace limbo {

class HeapMutex {
 public:
  HeapMutex() = default;
  HeapMutex(const HeapMutex&) = delete;
  HeapMutex& operator=(const HeapMutex&) = delete;

  void lock() noexcept {
    if (!try_lock()) [[unlikely]] {
      lock_taken();
    }
  }
  // As lock; whether somebody else had it.
  [[nodiscard]] bool lock_was_taken() noexcept {
    if (try_lock()) return false;
    lock_taken();
    return true;
  }
  [[nodiscard]] bool try_lock() noexcept {
    int free = kFree;
    return state_.compare_exchange_strong(free, kLocked, std::memory_order_acquire,
                                          std::memory_order_relaxed);
  }
  void unlock() noexcept {
    if (state_.exchange(kFree, std::memory_order_release) == kAwaited) [[unlikely]] {
      state_.notify_one();
    }
  }

 private:
  static constexpr int kFree = 0;
  static constexpr int kLocked = 1;
  static constexpr int kAwaited = 2;  // locked, and somebody may sleep

  void lock_taken() noexcept;

  std::atomic<int> state_{kFree};
};

}  // namespace limbo
