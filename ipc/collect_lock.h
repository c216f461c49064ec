// The collect lock: guards every private record of a producer. Its word's table is in
// protocol/lock.h; here is the waiting.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <thread>

#include "ipc/protocol/lock.h"

namespace limbo {

class CollectLock {
 public:
  // True: locked by the caller. False: somebody else holds it and will look again.
  [[nodiscard]] bool try_lock_or_ask() noexcept {
    Word word;
    return protocol::try_lock_or_ask(word, &word_);
  }

  // Waits. Holders make no call that can block, so it is short.
  void lock() noexcept {
    Word word;
    while (!protocol::try_lock(word, &word_)) {
      const std::uint32_t seen = word_.load(std::memory_order_relaxed);
      if ((seen & protocol::kLocked) != 0) word_.wait(seen, std::memory_order_relaxed);
    }
  }

  // Waits until then at most.
  [[nodiscard]] bool try_lock_until(std::chrono::steady_clock::time_point deadline) noexcept {
    Word word;
    for (;;) {
      if (protocol::try_lock(word, &word_)) return true;
      if (std::chrono::steady_clock::now() >= deadline) return false;
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
  }

  // False: still locked; somebody asked, and the caller must look again first.
  [[nodiscard]] bool unlock_or_again() noexcept {
    Word word;
    if (!protocol::unlock_or_again(word, &word_)) return false;
    word_.notify_all();
    return true;
  }

  // Unlocks in any case. True: somebody asked, and the caller must ask in its place.
  [[nodiscard]] bool unlock_owing() noexcept {
    Word word;
    const bool owes = protocol::unlock_owing(word, &word_);
    word_.notify_all();
    return owes;
  }

 private:
  // A word of the size that the system can wait on.
  struct Word {
    using Ref = std::atomic<std::uint32_t>*;
    static std::uint64_t load(Ref word, std::memory_order order) noexcept {
      return word->load(order);
    }
    static void store(Ref word, std::uint64_t value, std::memory_order order) noexcept {
      word->store(static_cast<std::uint32_t>(value), order);
    }
    static bool compare_exchange(Ref word, std::uint64_t& expected, std::uint64_t desired,
                                 std::memory_order order) noexcept {
      auto seen = static_cast<std::uint32_t>(expected);
      const bool done = word->compare_exchange_strong(seen, static_cast<std::uint32_t>(desired),
                                                      order, std::memory_order_relaxed);
      expected = seen;
      return done;
    }
  };

  std::atomic<std::uint32_t> word_{0};
};

}  // namespace limbo
