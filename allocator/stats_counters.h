// The counters behind DeviceStats.
//
// Two kinds of places count: each thread's cache (plain counters that only their owner writes) and
// the device's heap (under its lock). A statistic is their sum. Read inside all gates and the heap
// lock the sum is exact.
//
// Peaks. Between two central changes a thread moves blocks only between the program and its own
// cache, so nothing but the threads' own maxima is needed: every thread keeps the maxima of its
// levels since the last central change (a *window*). A central change first closes the window,
// which means taking heap level + sum of the threads' maxima as a candidate for the peak and
// starting a new epoch; a thread that sees a new epoch restarts its maxima, before it counts, on
// frees too. With one thread the peak is exact. With several their maxima may stem from different
// moments: it is too high by at most what the other threads' caches may hold.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "allocator/stats.h"

namespace limbo {

enum Metric : unsigned {
  // Counted by threads and by the heap.
  kBlocks = 0,
  kBytes,
  kInactive,
  kInactiveBytes,
  kRequested,
  kThreadMetrics,
  // Counted by the heap alone; a thread's kBlocks and kBytes are active ones too.
  kActive = kThreadMetrics,
  kActiveBytes,
  kSegments,
  kReserved,
  kMetrics,
};

// [kSmall - 1], [kLarge - 1] are counted; the level of kAll is kept beside them for its peak.
inline constexpr std::size_t kKinds = 3;
inline constexpr std::size_t kAllKind = static_cast<std::size_t>(SizeKind::kAll);
[[nodiscard]] constexpr std::size_t kind_of(bool large) noexcept {
  return static_cast<std::size_t>(large ? SizeKind::kLarge : SizeKind::kSmall);
}

// One thread's counters for one device. Written by the owner inside its gate; read by anyone.
class alignas(64) ThreadCounters {
 public:
  // A block came out of the cache, or went into it. Parts of every hit.
  void on_allocate(bool large, std::size_t size_bytes, std::size_t requested_bytes, bool split,
                   std::uint64_t epoch) noexcept {
    if (epoch_.load(std::memory_order_relaxed) != epoch) [[unlikely]] {
      enter(epoch);
    }
    const auto bytes = static_cast<std::int64_t>(size_bytes);
    rise(kBlocks, large, 1);
    rise(kBytes, large, bytes);
    rise(kRequested, large, static_cast<std::int64_t>(requested_bytes));
    if (!split) return;
    fall(kInactive, large, 1);
    fall(kInactiveBytes, large, bytes);
  }
  void on_free(bool large, std::size_t size_bytes, std::size_t requested_bytes, bool split,
               std::uint64_t epoch) noexcept {
    if (epoch_.load(std::memory_order_relaxed) != epoch) [[unlikely]] {
      enter(epoch);
    }
    const auto bytes = static_cast<std::int64_t>(size_bytes);
    fall(kBlocks, large, 1);
    fall(kBytes, large, bytes);
    fall(kRequested, large, static_cast<std::int64_t>(requested_bytes));
    if (!split) return;
    rise(kInactive, large, 1);
    rise(kInactiveBytes, large, bytes);
  }

 private:
  friend class DeviceCounters;
  using Number = std::atomic<std::int64_t>;

  void enter(std::uint64_t epoch) noexcept;

  // Only the owner writes: no read-modify-write is needed.
  static std::int64_t add(Number& number, std::int64_t by) noexcept {
    const std::int64_t sum = number.load(std::memory_order_relaxed) + by;
    number.store(sum, std::memory_order_relaxed);
    return sum;
  }
  void rise_of_kind(Metric metric, std::size_t kind, std::int64_t by) noexcept {
    const std::int64_t level = add(levels_[metric][kind], by);
    Number& maximum = maxima_[metric][kind];
    if (level > maximum.load(std::memory_order_relaxed)) [[unlikely]] {
      maximum.store(level, std::memory_order_relaxed);
    }
  }
  void rise(Metric metric, bool large, std::int64_t by) noexcept {
    add(ups_[metric][large ? 1 : 0], by);
    rise_of_kind(metric, kind_of(large), by);
    rise_of_kind(metric, kAllKind, by);
  }
  void fall(Metric metric, bool large, std::int64_t by) noexcept {
    add(levels_[metric][kind_of(large)], -by);
    add(levels_[metric][kAllKind], -by);
  }

  std::array<std::array<Number, 2>, kThreadMetrics> ups_{};  // sums of increases [large]
  std::array<std::array<Number, kKinds>, kThreadMetrics> levels_{};
  std::array<std::array<Number, kKinds>, kThreadMetrics> maxima_{};  // of this window
  std::atomic<std::uint64_t> epoch_{0};
};

// The heap's counters of one device. Every function but epoch() and the three below it needs the heap
// lock.
class DeviceCounters {
 public:
  // A window that threads compare with; changes whenever the heap's levels may have changed.
  [[nodiscard]] std::uint64_t epoch() const noexcept {
    return epoch_.load(std::memory_order_relaxed);
  }

  // Whether allocations must go the central way, past all caches: somebody has asked for it and not
  // yet taken it back. It lives here because every hit reads this line anyway. Relaxed: an
  // allocation that happens after the asking (in the language's sense) sees it.
  [[nodiscard]] bool caches_bypassed() const noexcept {
    return bypasses_.load(std::memory_order_relaxed) != 0;
  }
  void bypass_caches() noexcept { bypasses_.fetch_add(1, std::memory_order_relaxed); }
  void allow_caches() noexcept { bypasses_.fetch_sub(1, std::memory_order_relaxed); }

  void add_thread(ThreadCounters* counters) { threads_.push_back(counters); }
  // Takes over what the thread has counted; nothing happens if it was not added.
  void remove_thread(ThreadCounters* counters) noexcept;

  // Around every group of changes: see CountersChange.
  void close_window() noexcept;
  void note_peaks() noexcept;

  void add(Metric metric, bool large, std::size_t by) noexcept;
  void subtract(Metric metric, bool large, std::size_t by) noexcept;

  // A block is handed out by the heap, or freed for good.
  void add_active(bool large, std::size_t size_bytes, std::size_t requested_bytes) noexcept;
  void subtract_active(bool large, std::size_t size_bytes, std::size_t requested_bytes) noexcept;
  void add_allocated(bool large, std::size_t size_bytes) noexcept;
  void subtract_allocated(bool large, std::size_t size_bytes) noexcept;

  void reset_peaks() noexcept;
  void reset_accumulated() noexcept;

  // All fields of DeviceStats but held_for_readers_bytes.
  void fill(DeviceStats& stats) noexcept;

  // The two oversize numbers, which only the heap counts.
  static void raise(Stat& stat) noexcept;
  static void lower(Stat& stat) noexcept;
  Stat oversize_allocations;
  Stat oversize_segments;

  std::int64_t num_alloc_retries = 0;
  std::int64_t num_ooms = 0;
  std::int64_t num_device_alloc = 0;
  std::int64_t num_device_free = 0;
  std::int64_t num_sync_all_streams = 0;
  std::int64_t limbo_blocks = 0;
  std::int64_t limbo_bytes = 0;

 private:
  using Row = std::array<std::int64_t, kKinds>;
  // Sums over the heap and all threads.
  [[nodiscard]] Row total_ups(Metric metric) const noexcept;
  [[nodiscard]] Row total_levels(Metric metric) const noexcept;
  [[nodiscard]] StatByKind stat(Metric metric) const noexcept;

  alignas(64) std::atomic<std::uint64_t> epoch_{1};  // read at every hit: a line of its own
  std::atomic<std::uint32_t> bypasses_{0};           // on the same line
  alignas(64) std::vector<ThreadCounters*> threads_;
  std::array<Row, kMetrics> ups_{};
  std::array<Row, kMetrics> levels_{};
  std::array<Row, kMetrics> peaks_{};
  std::array<Row, kMetrics> base_ups_{};  // at the last reset_accumulated
  std::array<Row, kMetrics> base_downs_{};
};

// Brackets a group of changes of the heap's counters, so that peaks see the state before and after.
class CountersChange {
 public:
  explicit CountersChange(DeviceCounters& counters) noexcept : counters_(counters) {
    counters_.close_window();
  }
  ~CountersChange() { counters_.note_peaks(); }
  CountersChange(const CountersChange&) = delete;
  CountersChange& operator=(const CountersChange&) = delete;

 private:
  DeviceCounters& counters_;
};

}  // namespace limbo
