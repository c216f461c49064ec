// torch's words for the allocator's history (allocator/trace.h): contexts, trackers, times.
#pragma once

#include <c10/cuda/CUDACachingAllocator.h>

#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "allocator/allocator.h"

namespace limbo {

// Entries of the allocator carry c10's approximate times from here on, and it gets the trackers that
// were attached before it was made. Called once, when the process's allocator is made.
void start_history(Allocator& allocator);

// Settings in the allocator's words. Throws c10::Error where contexts are wanted and `recorder` is
// null, and for a name that is no action. (There is one recorder at a time in a process, as in torch;
// this sets it.)
[[nodiscard]] HistorySettings to_history_settings(
    bool enabled, c10::cuda::CUDACachingAllocator::CreateContextFn recorder,
    std::size_t max_entries, c10::cuda::CUDACachingAllocator::RecordContext when, bool clear,
    const std::vector<std::string>& skip_actions);

// Attaches a tracker to the process's allocator, now or as soon as there is one. What it throws is
// printed where the allocator drops it.
void attach_tracker(c10::cuda::CUDACachingAllocator::AllocatorTraceTracker tracker);

// Contexts as torch gave them out.
[[nodiscard]] std::shared_ptr<c10::GatheredContext> to_torch(const CallContext& context);

// Microseconds since 1970 for approximate times.
[[nodiscard]] std::function<c10::time_t(c10::approx_time_t)> make_clock_converter();

// With an approximate time.
[[nodiscard]] c10::cuda::CUDACachingAllocator::TraceEntry to_torch(const TraceEntry& entry);

[[nodiscard]] inline c10::MempoolId_t to_torch(PoolId pool) {
  return {pool.first, pool.second};
}

// What torch.cuda's record functions note beside the entries, the last ones of the process.
// Thread-safe.
class Annotations {
 public:
  using Entry = c10::CachingDeviceAllocator::AnnotationEntry;

  // As many of the last ones as history keeps entries; forgotten with it.
  void set(const HistorySettings& settings);
  void add(Entry entry);
  [[nodiscard]] std::vector<Entry> entries() const;

 private:
  mutable std::mutex mutex_;  // guards the rest; a leaf
  std::size_t max_entries_ = 1;
  std::deque<Entry> ring_;
};

}  // namespace limbo
