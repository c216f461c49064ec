// Sleeping until another process moves a word.
#pragma once

#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <climits>
#include <cstdint>

namespace limbo::sim {

// Returns when woken, when `word` is not `expected`, or after `at_most`; also without a reason.
inline void futex_wait(std::atomic<std::uint32_t>& word, std::uint32_t expected,
                       std::chrono::milliseconds at_most) {
  timespec limit{};
  limit.tv_sec = at_most.count() / 1000;
  limit.tv_nsec = at_most.count() % 1000 * 1'000'000;
  ::syscall(SYS_futex, reinterpret_cast<std::uint32_t*>(&word), FUTEX_WAIT, expected, &limit,
            nullptr, 0);
}

// Says that something moved. `waiters` counts those who may sleep: they add themselves, read
// `signal`, look, and only then sleep, all sequentially consistent.
inline void signal_waiters(std::atomic<std::uint32_t>& signal,
                           std::atomic<std::uint32_t>& waiters) {
  signal.fetch_add(1);
  if (waiters.load() == 0) return;
  ::syscall(SYS_futex, reinterpret_cast<std::uint32_t*>(&signal), FUTEX_WAKE, INT_MAX, nullptr,
            nullptr, 0);
}

}  // namespace limbo::sim
