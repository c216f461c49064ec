// The counters behind DeviceStats.
//
// Two kinds of places count: each thread's cache (plain counters that only their owner writes) and
// the device's heap (under its lock). A statistic is their sum. Read inside all gates and the heap
// lock the sum is exact.
//
// Central changes. Most are a thread's own: a miss takes a block, a full cache gives some back. They
// are counted with the thread, as if its cache had served them (CountersChange with its counters).
// The others, which may end what another thread has begun, are counted with the heap.
//
// Peaks. Time is cut into *windows*. In a window the heap's levels stand still, and every thread
// keeps the maxima of its own ones. The end of a window takes heap level + sum of the threads'
// maxima as a candidate for the peak and starts a new epoch; a thread that sees a new epoch restarts
// its maxima before it counts, on frees too. A window ends before every change of the heap's levels,
// when a peak is read, and, where several threads have moved in it, before a thread's central
// change: before each as long as they are few, after some of them where many are at work, for the
// threads' counters have to be fetched from their processors. With one thread the peak is exact. With several
// their maxima may stem from different moments: it is too high by at most what the other threads'
// caches may hold, and kWindowBytes. Blocks that go from thread to thread through a depot make no
// central change: after kWindowBytes of them the next one is made for that alone.
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

// Where many threads move, a window ends before more than so much is handed out centrally in it; a
// larger block has one to itself.
inline constexpr std::int64_t kWindowBytes = std::int64_t{16} << 20;

// One thread's counters for one device. Written by the owner inside its gate or the heap lock; read
// by anyone.
class alignas(128) ThreadCounters {
 public:
  // A block came out of the cache, or went into it. Parts of every hit.
  [[gnu::always_inline]] void on_allocate(bool large, std::size_t size_bytes,
                                          std::size_t requested_bytes, bool split,
                                          std::uint64_t epoch) noexcept {
    see(epoch);
    const auto bytes = static_cast<std::int64_t>(size_bytes);
    const auto requested = static_cast<std::int64_t>(requested_bytes);
    Ups& ups = ups_[large ? 1 : 0];
    add(ups[kBlocks], 1);
    add(ups[kBytes], bytes);
    add(ups[kRequested], requested);
    Levels& of_kind = levels_[kind_of(large)];
    Levels& of_all = levels_[kAllKind];
    of_kind[kBlocks].rise(1);
    of_all[kBlocks].rise(1);
    of_kind[kBytes].rise(bytes);
    of_all[kBytes].rise(bytes);
    of_kind[kRequested].rise(requested);
    of_all[kRequested].rise(requested);
    if (!split) return;
    of_kind[kInactive].fall(1);
    of_all[kInactive].fall(1);
    of_kind[kInactiveBytes].fall(bytes);
    of_all[kInactiveBytes].fall(bytes);
  }
  [[gnu::always_inline]] void on_free(bool large, std::size_t size_bytes,
                                      std::size_t requested_bytes, bool split,
                                      std::uint64_t epoch) noexcept {
    see(epoch);
    const auto bytes = static_cast<std::int64_t>(size_bytes);
    const auto requested = static_cast<std::int64_t>(requested_bytes);
    Levels& of_kind = levels_[kind_of(large)];
    Levels& of_all = levels_[kAllKind];
    of_kind[kBlocks].fall(1);
    of_all[kBlocks].fall(1);
    of_kind[kBytes].fall(bytes);
    of_all[kBytes].fall(bytes);
    of_kind[kRequested].fall(requested);
    of_all[kRequested].fall(requested);
    if (!split) return;
    Ups& ups = ups_[large ? 1 : 0];
    add(ups[kInactive], 1);
    add(ups[kInactiveBytes], bytes);
    of_kind[kInactive].rise(1);
    of_all[kInactive].rise(1);
    of_kind[kInactiveBytes].rise(bytes);
    of_all[kInactiveBytes].rise(bytes);
  }

  // A central change of the owner's: in the heap lock instead of the gate, after see().
  void rise(Metric metric, bool large, std::int64_t by) noexcept {
    add(ups_[large ? 1 : 0][metric], by);
    levels_[kind_of(large)][metric].rise(by);
    levels_[kAllKind][metric].rise(by);
  }
  void fall(Metric metric, bool large, std::int64_t by) noexcept {
    levels_[kind_of(large)][metric].fall(by);
    levels_[kAllKind][metric].fall(by);
  }
  // Before anything is counted: the window that is now.
  [[gnu::always_inline]] void see(std::uint64_t epoch) noexcept {
    if (epoch_.load(std::memory_order_relaxed) != epoch) [[unlikely]] {
      enter(epoch);
    }
  }

 private:
  friend class DeviceCounters;
  using Number = std::atomic<std::int64_t>;

  // Only the owner writes: no read-modify-write is needed.
  [[gnu::always_inline]] static std::int64_t add(Number& number, std::int64_t by) noexcept {
    const std::int64_t sum = number.load(std::memory_order_relaxed) + by;
    number.store(sum, std::memory_order_relaxed);
    return sum;
  }

  // A level, kept as its maximum in this window and how far it is below that: so a hit sees by a
  // sign whether the maximum moves. Whoever reads both beside the owner, the maximum first, never
  // gets less than one of the levels before and after what the owner does at the moment: it writes
  // `below` first.
  class Level {
   public:
    [[gnu::always_inline]] void rise(std::int64_t by) noexcept {
      const std::int64_t below = add(below_, -by);
      if (below < 0) [[unlikely]] {
        move_maximum(-below);
      }
    }
    [[gnu::always_inline]] void fall(std::int64_t by) noexcept { add(below_, by); }
    // A new window begins.
    void restart() noexcept {
      const std::int64_t below = below_.load(std::memory_order_relaxed);
      if (below == 0) return;
      below_.store(0, std::memory_order_relaxed);
      maximum_.store(maximum_.load(std::memory_order_relaxed) - below, std::memory_order_release);
    }

    [[nodiscard]] std::int64_t maximum() const noexcept {
      return maximum_.load(std::memory_order_acquire);
    }
    [[nodiscard]] std::int64_t now() const noexcept {
      const std::int64_t highest = maximum();
      return highest - below_.load(std::memory_order_relaxed);
    }

   private:
    [[gnu::noinline]] void move_maximum(std::int64_t by) noexcept {
      below_.store(0, std::memory_order_relaxed);
      maximum_.store(maximum_.load(std::memory_order_relaxed) + by, std::memory_order_release);
    }

    Number maximum_{0};
    Number below_{0};
  };

  using Ups = std::array<Number, kThreadMetrics>;
  using Levels = std::array<Level, kThreadMetrics>;

  void enter(std::uint64_t epoch) noexcept;

  std::atomic<std::uint64_t> epoch_{0};
  std::atomic<std::uint32_t>* movers_ = nullptr;  // DeviceCounters::movers_
  std::uint64_t turn_ = 0;                        // of its last central change; heap lock
  std::array<Ups, 2> ups_{};                      // sums of increases [large]
  std::array<Levels, kKinds> levels_{};
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

  // Blocks on their way from thread to thread: taken out of a depot in this window. Where it has been
  // much the depot is not asked until a central change has ended the window: the thread that takes
  // rises for ever, and its maximum with it.
  void note_flow(std::size_t bytes) const noexcept {
    flow_bytes_.fetch_add(static_cast<std::int64_t>(bytes), std::memory_order_relaxed);
  }
  [[nodiscard]] bool flow_is_long() const noexcept {
    return flow_bytes_.load(std::memory_order_relaxed) >= kWindowBytes;
  }

  void bypass_caches() noexcept { bypasses_.fetch_add(1, std::memory_order_relaxed); }
  void allow_caches() noexcept { bypasses_.fetch_sub(1, std::memory_order_relaxed); }

  void add_thread(ThreadCounters* counters) {
    counters->movers_ = &movers_;
    threads_.push_back(counters);
  }
  // Takes over what the thread has counted; nothing happens if it was not added.
  void remove_thread(ThreadCounters* counters) noexcept;

  // Around every group of changes: see CountersChange.
  void begin_change(ThreadCounters* own) noexcept;
  void end_change() noexcept { own_ = nullptr; }

  void add(Metric metric, bool large, std::size_t by) noexcept {
    if (own_ != nullptr && metric < kThreadMetrics) {
      own_->rise(metric, large, static_cast<std::int64_t>(by));
    } else {
      add_to_heap(metric, large, by);
    }
  }
  void subtract(Metric metric, bool large, std::size_t by) noexcept {
    if (own_ != nullptr && metric < kThreadMetrics) {
      own_->fall(metric, large, static_cast<std::int64_t>(by));
    } else {
      subtract_from_heap(metric, large, by);
    }
  }

  // A block is handed out by the heap, or freed for good.
  void add_handed_out(bool large, std::size_t size_bytes, std::size_t requested_bytes) noexcept;
  void subtract_active(bool large, std::size_t size_bytes, std::size_t requested_bytes) noexcept;
  void subtract_allocated(bool large, std::size_t size_bytes) noexcept;

  void reset_peaks() noexcept;
  void reset_accumulated() noexcept;

  // Of all sizes, as it is now.
  [[nodiscard]] std::int64_t level(Metric metric) const noexcept {
    return total_levels(metric)[kAllKind];
  }
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
  void add_to_heap(Metric metric, bool large, std::size_t by) noexcept;
  void subtract_from_heap(Metric metric, bool large, std::size_t by) noexcept;
  void close_window() noexcept;
  void note_peaks() noexcept;
  [[nodiscard]] bool window_is_long(const ThreadCounters& own) const noexcept;
  void make_room_in_window(std::size_t size_bytes) noexcept;
  // Sums over the heap and all threads.
  [[nodiscard]] Row total_ups(Metric metric) const noexcept;
  [[nodiscard]] Row total_levels(Metric metric) const noexcept;
  [[nodiscard]] StatByKind stat(Metric metric) const noexcept;

  alignas(128) std::atomic<std::uint64_t> epoch_{1};  // read at every hit: a line of its own
  std::atomic<std::uint32_t> bypasses_{0};            // on the same line
  // How many threads have moved in this window. Written by each once a window.
  alignas(128) std::atomic<std::uint32_t> movers_{0};
  alignas(64) mutable std::atomic<std::int64_t> flow_bytes_{0};
  alignas(64) std::vector<ThreadCounters*> threads_;
  ThreadCounters* own_ = nullptr;     // whom this change is counted with; null: the heap
  std::uint32_t window_changes_ = 0;  // threads' central changes in this window
  std::int64_t window_bytes_ = 0;     // that they handed out
  // How many threads make central changes: counted in turns of kTurn changes.
  static constexpr std::uint32_t kTurn = 64;
  std::uint64_t turn_ = 1;
  std::uint32_t turn_changes_ = 0;
  std::uint32_t in_turn_ = 0;
  std::uint32_t in_last_turn_ = 0;
  std::array<Row, kMetrics> ups_{};
  std::array<Row, kMetrics> levels_{};
  std::array<Row, kMetrics> peaks_{};
  std::array<Row, kMetrics> base_ups_{};  // at the last reset_accumulated
  std::array<Row, kMetrics> base_downs_{};
};

// Stands before a group of changes of the heap's counters, so that peaks see the state before it.
// The state after it is seen by the next one, as the start of the window that ends there.
class CountersChange {
 public:
  // `own`: the calling thread's counters, where the change only hands out blocks, merges and cuts
  // free ones, and enters segments.
  explicit CountersChange(DeviceCounters& counters, ThreadCounters* own = nullptr) noexcept
      : counters_(counters) {
    counters.begin_change(own);
  }
  ~CountersChange() { counters_.end_change(); }
  CountersChange(const CountersChange&) = delete;
  CountersChange& operator=(const CountersChange&) = delete;

 private:
  DeviceCounters& counters_;
};

}  // namespace limbo
