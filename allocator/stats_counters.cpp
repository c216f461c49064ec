#include "allocator/stats_counters.h"

#include <algorithm>
#include <utility>

namespace limbo {
namespace {

// What a thread's counters contribute to a metric; kMetrics if nothing.
constexpr Metric thread_source(Metric metric) noexcept {
  if (metric < kThreadMetrics) return metric;
  if (metric == kActive) return kBlocks;
  return metric == kActiveBytes ? kBytes : kMetrics;
}

std::int64_t read(const std::atomic<std::int64_t>& number) noexcept {
  return number.load(std::memory_order_relaxed);
}

std::int64_t signed_of(std::size_t size) noexcept {
  return static_cast<std::int64_t>(size);
}

}  // namespace

void ThreadCounters::enter(std::uint64_t epoch) noexcept {
  for (Levels& levels : levels_) {
    for (Level& level : levels) level.restart();
  }
  epoch_.store(epoch, std::memory_order_relaxed);
  if (movers_ != nullptr) movers_->fetch_add(1, std::memory_order_relaxed);
}

DeviceCounters::Row DeviceCounters::total_ups(Metric metric) const noexcept {
  Row sum = ups_[metric];
  const Metric source = thread_source(metric);
  if (source == kMetrics) return sum;
  for (const ThreadCounters* thread : threads_) {
    for (const bool large : {false, true}) {
      const std::int64_t up = read(thread->ups_[large ? 1 : 0][source]);
      sum[kind_of(large)] += up;
      sum[kAllKind] += up;
    }
  }
  return sum;
}

DeviceCounters::Row DeviceCounters::total_levels(Metric metric) const noexcept {
  Row sum = levels_[metric];
  const Metric source = thread_source(metric);
  if (source == kMetrics) return sum;
  for (const ThreadCounters* thread : threads_) {
    for (std::size_t kind = 0; kind < kKinds; ++kind) {
      sum[kind] += thread->levels_[kind][source].now();
    }
  }
  return sum;
}

void DeviceCounters::begin_change(ThreadCounters* own) noexcept {
  own_ = own;
  if (own == nullptr || window_is_long(*own)) close_window();
  if (own == nullptr) return;
  ++window_changes_;
  if (++turn_changes_ == kTurn) {
    in_last_turn_ = std::exchange(in_turn_, 0);
    turn_changes_ = 0;
    ++turn_;
  }
  if (std::exchange(own->turn_, turn_) != turn_) ++in_turn_;
  own->see(epoch());
}

// Whether a window in which some threads have moved must not go on. One thread may move in it for
// ever: its maxima are those of all.
bool DeviceCounters::window_is_long(const ThreadCounters& own) const noexcept {
  constexpr std::uint32_t kFew = 4;
  if (flow_is_long()) return true;
  const std::uint32_t joins = own.epoch_.load(std::memory_order_relaxed) != epoch() ? 1 : 0;
  if (movers_.load(std::memory_order_relaxed) + joins <= 1) return false;
  if (std::max(in_turn_, in_last_turn_) <= kFew) return true;
  return window_changes_ >= kTurn || window_bytes_ >= kWindowBytes;
}

void DeviceCounters::close_window() noexcept {
  note_peaks();
  window_changes_ = 0;
  window_bytes_ = 0;
  flow_bytes_.store(0, std::memory_order_relaxed);
  movers_.store(0, std::memory_order_relaxed);
  epoch_.store(epoch_.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
}

void DeviceCounters::note_peaks() noexcept {
  const std::uint64_t now = epoch();
  for (unsigned index = 0; index < kMetrics; ++index) {
    Row sum = levels_[index];
    const Metric source = thread_source(static_cast<Metric>(index));
    if (source != kMetrics) {
      for (const ThreadCounters* thread : threads_) {
        // A thread that has not been here in this window has not moved: its level is its maximum.
        const bool current = thread->epoch_.load(std::memory_order_relaxed) == now;
        for (std::size_t kind = 0; kind < kKinds; ++kind) {
          const ThreadCounters::Level& level = thread->levels_[kind][source];
          sum[kind] += current ? level.maximum() : level.now();
        }
      }
    }
    for (std::size_t kind = 0; kind < kKinds; ++kind) {
      peaks_[index][kind] = std::max(peaks_[index][kind], sum[kind]);
    }
  }
}

void DeviceCounters::remove_thread(ThreadCounters* counters) noexcept {
  const auto known = std::find(threads_.begin(), threads_.end(), counters);
  if (known == threads_.end()) return;
  close_window();
  for (unsigned index = 0; index < kMetrics; ++index) {
    const Metric source = thread_source(static_cast<Metric>(index));
    if (source == kMetrics) continue;
    for (const bool large : {false, true}) {
      const std::int64_t up = read(counters->ups_[large ? 1 : 0][source]);
      ups_[index][kind_of(large)] += up;
      ups_[index][kAllKind] += up;
    }
    for (std::size_t kind = 0; kind < kKinds; ++kind) {
      levels_[index][kind] += counters->levels_[kind][source].now();
    }
  }
  threads_.erase(known);
}

void DeviceCounters::add_to_heap(Metric metric, bool large, std::size_t by) noexcept {
  for (const std::size_t kind : {kind_of(large), kAllKind}) {
    ups_[metric][kind] += signed_of(by);
    levels_[metric][kind] += signed_of(by);
    // No thread's part: these move in the midst of a window.
    if (metric >= kSegments) {
      peaks_[metric][kind] = std::max(peaks_[metric][kind], levels_[metric][kind]);
    }
  }
}

void DeviceCounters::subtract_from_heap(Metric metric, bool large, std::size_t by) noexcept {
  for (const std::size_t kind : {kind_of(large), kAllKind}) levels_[metric][kind] -= signed_of(by);
}

// What many threads take centrally in one window is bounded, the block that is taken now included:
// what others have given up in it is counted as if they still had it. (Cutting the block, which this
// change may have begun with, has left all levels as they will be.)
void DeviceCounters::make_room_in_window(std::size_t size_bytes) noexcept {
  if (own_ == nullptr) return;
  if (window_bytes_ + signed_of(size_bytes) > kWindowBytes &&
      movers_.load(std::memory_order_relaxed) > 1) {
    close_window();
    own_->see(epoch());
  }
  window_bytes_ += signed_of(size_bytes);
}

void DeviceCounters::add_handed_out(bool large, std::size_t size_bytes,
                                    std::size_t requested_bytes) noexcept {
  make_room_in_window(size_bytes);
  add(kBlocks, large, 1);
  add(kBytes, large, size_bytes);
  add(kRequested, large, requested_bytes);
  if (own_ != nullptr) return;  // its blocks are active ones too
  add(kActive, large, 1);
  add(kActiveBytes, large, size_bytes);
}

void DeviceCounters::subtract_active(bool large, std::size_t size_bytes,
                                     std::size_t requested_bytes) noexcept {
  subtract(kActive, large, 1);
  subtract(kActiveBytes, large, size_bytes);
  subtract(kRequested, large, requested_bytes);
}

void DeviceCounters::subtract_allocated(bool large, std::size_t size_bytes) noexcept {
  subtract(kBlocks, large, 1);
  subtract(kBytes, large, size_bytes);
}

void DeviceCounters::raise(Stat& stat) noexcept {
  ++stat.current;
  ++stat.allocated;
  stat.peak = std::max(stat.peak, stat.current);
}

void DeviceCounters::lower(Stat& stat) noexcept {
  --stat.current;
  ++stat.freed;
}

void DeviceCounters::reset_peaks() noexcept {
  close_window();
  for (unsigned index = 0; index < kMetrics; ++index) {
    peaks_[index] = total_levels(static_cast<Metric>(index));
  }
  for (Stat* stat : {&oversize_allocations, &oversize_segments}) stat->peak = stat->current;
}

void DeviceCounters::reset_accumulated() noexcept {
  for (unsigned index = 0; index < kMetrics; ++index) {
    const Row ups = total_ups(static_cast<Metric>(index));
    const Row levels = total_levels(static_cast<Metric>(index));
    base_ups_[index] = ups;
    for (std::size_t kind = 0; kind < kKinds; ++kind) {
      base_downs_[index][kind] = ups[kind] - levels[kind];
    }
  }
  for (Stat* stat : {&oversize_allocations, &oversize_segments}) stat->allocated = stat->freed = 0;
  num_alloc_retries = num_ooms = num_device_alloc = num_device_free = num_sync_all_streams = 0;
}

StatByKind DeviceCounters::stat(Metric metric) const noexcept {
  const Row ups = total_ups(metric);
  const Row levels = total_levels(metric);
  StatByKind by_kind;
  for (std::size_t kind = 0; kind < kKinds; ++kind) {
    Stat& one = by_kind[kind];
    one.current = levels[kind];
    one.peak = peaks_[metric][kind];
    one.allocated = ups[kind] - base_ups_[metric][kind];
    one.freed = ups[kind] - levels[kind] - base_downs_[metric][kind];
  }
  return by_kind;
}

void DeviceCounters::fill(DeviceStats& stats) noexcept {
  close_window();
  stats.allocation = stat(kBlocks);
  stats.segment = stat(kSegments);
  stats.active = stat(kActive);
  stats.inactive_split = stat(kInactive);
  stats.allocated_bytes = stat(kBytes);
  stats.reserved_bytes = stat(kReserved);
  stats.active_bytes = stat(kActiveBytes);
  stats.inactive_split_bytes = stat(kInactiveBytes);
  stats.requested_bytes = stat(kRequested);
  stats.oversize_allocations = oversize_allocations;
  stats.oversize_segments = oversize_segments;
  stats.num_alloc_retries = num_alloc_retries;
  stats.num_ooms = num_ooms;
  stats.num_device_alloc = num_device_alloc;
  stats.num_device_free = num_device_free;
  stats.num_sync_all_streams = num_sync_all_streams;
  stats.limbo_blocks = limbo_blocks;
  stats.limbo_bytes = limbo_bytes;
}

}  // namespace limbo
