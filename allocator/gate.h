// The gate of a thread's cache: the owner passes at the price of two plain stores and a load, and
// anyone else can stop it and then have the cache for himself.
//
// | word | who writes                | what it means                          |
// |------|---------------------------|----------------------------------------|
// | busy | the owner                 | it is inside                           |
// | stop | whoever holds the         | the owner must not go in: it takes the |
// |      | registry lock (sweeper)   | central way this time and never waits  |
//
// Owner: busy = 1, compiler barrier, read stop; if it is 0, work; busy = 0 (release).
// Sweeper: stop = 1 in every gate, one membarrier, wait for busy = 0 (acquire), work, stop = 0
// (release; the owner's read of stop is an acquire).
// The membarrier stands in for the fence that the owner leaves out: after it either the sweeper
// sees busy or the owner sees stop. Where the kernel refuses membarrier, and under ThreadSanitizer,
// which cannot see it, `busy` is a lock taken by exchange instead.
#pragma once

#include <atomic>
#include <cstdint>

namespace limbo {

#if defined(__SANITIZE_THREAD__)
inline constexpr bool kThreadSanitizer = true;
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
inline constexpr bool kThreadSanitizer = true;
#else
inline constexpr bool kThreadSanitizer = false;
#endif
#else
inline constexpr bool kThreadSanitizer = false;
#endif

class Gate {
 public:
  Gate() noexcept : uses_membarrier_(process_uses_membarrier()) {}

  // Chooses between membarrier and exchange, once per process, before the first gate is made.
  static void prepare();

  // ---- the owner ----
  [[nodiscard]] bool try_enter() noexcept {
    if (!uses_membarrier_) [[unlikely]] {
      return busy_.exchange(1, std::memory_order_acquire) == 0;
    }
    busy_.store(1, std::memory_order_relaxed);
    std::atomic_signal_fence(std::memory_order_seq_cst);
    if (stop_.load(std::memory_order_acquire) == 0) [[likely]] {
      return true;
    }
    leave();
    return false;
  }
  void leave() noexcept { busy_.store(0, std::memory_order_release); }

  // ---- the sweeper, in this order, holding the registry lock throughout ----
  void ask_to_stop() noexcept;
  static void barrier();  // once for all gates; throws Error(kInternal) if the kernel refuses
  void wait_until_stopped() noexcept;
  void reopen() noexcept;
  // Takes ask_to_stop back where barrier failed.
  void cancel_stop() noexcept;

 private:
  [[nodiscard]] static bool process_uses_membarrier() noexcept;

  std::atomic<std::uint32_t> busy_{0};
  std::atomic<std::uint32_t> stop_{0};
  const bool uses_membarrier_;  // the process's; beside the words that the owner reads anyway
};

// The owner's visit; false if it must take the central way.
class GateVisit {
 public:
  explicit GateVisit(Gate& gate) noexcept : gate_(gate), inside_(gate.try_enter()) {}
  ~GateVisit() {
    if (inside_) gate_.leave();
  }
  GateVisit(const GateVisit&) = delete;
  GateVisit& operator=(const GateVisit&) = delete;
  explicit operator bool() const noexcept { return inside_; }

 private:
  Gate& gate_;
  const bool inside_;
};

}  // namespace limbo
