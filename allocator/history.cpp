// The history's settings and trackers (trace.h).
//
// While anybody wants entries, allocations and frees pass by the caches. The caches are emptied
// before the first entry, so that every block which is free by then is found by way of the heap.
#include "allocator/allocator_impl.h"
#include "allocator/error.h"

namespace limbo {

// Caller holds history_mutex.
void Allocator::Impl::bypass_caches_for_history() {
  bypass_caches_on_free();
  std::size_t bypassed = 0;
  try {
    for (; bypassed < heaps.size(); ++bypassed) bypass_caches(*heaps[bypassed]);
  } catch (...) {
    while (bypassed-- > 0) allow_caches(*heaps[bypassed]);
    allow_caches_on_free();
    throw;
  }
}

void Allocator::Impl::allow_caches_after_history() noexcept {
  for (const auto& at : heaps) allow_caches(*at);
  allow_caches_on_free();
}

void Allocator::set_history(const HistorySettings& settings) {
  if (settings.enabled && settings.contexts != ContextLevel::kNever && settings.gather == nullptr) {
    throw Error(ErrorCode::kBadArgument, "The history is to keep contexts, and nothing makes them.",
                "Give a function that gathers them, or ContextLevel::kNever.");
  }
  const std::lock_guard one_at_a_time(impl_->history_mutex);
  const bool enabled_before = impl_->history_enabled.load(std::memory_order_relaxed);
  if (settings.enabled && !enabled_before) impl_->bypass_caches_for_history();
  for (const auto& at : impl_->heaps) {
    const std::lock_guard lock(at->mutex);
    at->trace.set(settings);
  }
  impl_->history_enabled.store(settings.enabled, std::memory_order_relaxed);
  if (!settings.enabled && enabled_before) impl_->allow_caches_after_history();
}

bool Allocator::history_enabled() const noexcept {
  return impl_->history_enabled.load(std::memory_order_relaxed);
}

void Allocator::add_trace_tracker(TraceTracker tracker) {
  const auto shared = std::make_shared<const TraceTracker>(std::move(tracker));
  const std::lock_guard one_at_a_time(impl_->history_mutex);
  for (const auto& at : impl_->heaps) {
    const std::lock_guard lock(at->mutex);
    at->trace.make_room_for_tracker();
  }
  impl_->bypass_caches_for_history();  // for good: trackers are never removed
  for (const auto& at : impl_->heaps) {
    const std::lock_guard lock(at->mutex);
    at->trace.add_tracker(shared);
  }
}

}  // namespace limbo
