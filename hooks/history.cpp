#include "hooks/history.h"

#include <c10/util/ApproximateClock.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <mutex>
#include <optional>
#include <utility>

#include "hooks/error_text.h"
#include "hooks/process.h"

namespace limbo {
namespace {

namespace torch_cuda = c10::cuda::CUDACachingAllocator;
using torch_cuda::AllocatorTraceTracker;
using TorchEntry = torch_cuda::TraceEntry;

std::uint64_t approximate_time() noexcept {
  return static_cast<std::uint64_t>(c10::getApproximateTime());
}

// Made with the allocator: the further apart two looks at both clocks are, the better it converts.
const c10::ApproximateClockToUnixTimeConverter& clock_pair() {
  static const auto* made = new c10::ApproximateClockToUnixTimeConverter;
  return *made;
}

std::atomic<torch_cuda::CreateContextFn> recorder_in_use{nullptr};

CallContext gather_context() {
  const torch_cuda::CreateContextFn recorder = recorder_in_use.load(std::memory_order_acquire);
  return recorder == nullptr ? nullptr : CallContext(recorder());
}

// Trackers that came before the allocator was made.
struct EarlyTrackers {
  std::mutex mutex;     // guards the rest; a leaf
  bool closed = false;  // the allocator is there
  std::vector<TraceTracker> list;
};

EarlyTrackers& early_trackers() {
  static auto* made = new EarlyTrackers;  // never destroyed: allocation outlives static objects
  return *made;
}

constexpr bool is_of_segment(TraceAction action) noexcept {
  return action == TraceAction::kSegmentAlloc || action == TraceAction::kSegmentFree;
}

TraceTracker for_allocator(AllocatorTraceTracker tracker) {
  return [tracker = std::move(tracker)](const TraceEntry& entry) {
    const TorchEntry told = to_torch(entry);
    if (is_of_segment(entry.action)) return tracker(told);
    try {
      tracker(told);
    } catch (...) {
      std::fprintf(stderr, "limbo: an allocator trace tracker failed: %s\n",
                   current_exception_report().text.c_str());
    }
  };
}

TorchEntry::Action to_torch(TraceAction action) {
  switch (action) {
    case TraceAction::kAlloc:
      return TorchEntry::ALLOC;
    case TraceAction::kFreeRequested:
      return TorchEntry::FREE_REQUESTED;
    case TraceAction::kFreeCompleted:
      return TorchEntry::FREE_COMPLETED;
    case TraceAction::kSegmentAlloc:
      return TorchEntry::SEGMENT_ALLOC;
    case TraceAction::kSegmentFree:
      return TorchEntry::SEGMENT_FREE;
    case TraceAction::kSnapshot:
      return TorchEntry::SNAPSHOT;
    case TraceAction::kOutOfMemory:
      return TorchEntry::OOM;
  }
  TORCH_INTERNAL_ASSERT(false, "no such action");
}

// Nothing for what Limbo's segments never do (they are not mapped in parts).
std::optional<TraceAction> to_limbo(TorchEntry::Action action) {
  for (std::size_t index = 0; index < kTraceActions; ++index) {
    const auto candidate = static_cast<TraceAction>(index);
    if (to_torch(candidate) == action) return candidate;
  }
  return std::nullopt;
}

ContextLevel to_limbo(torch_cuda::RecordContext when) {
  switch (when) {
    case torch_cuda::RecordContext::NEVER:
      return ContextLevel::kNever;
    case torch_cuda::RecordContext::STATE:
      return ContextLevel::kState;
    case torch_cuda::RecordContext::ALLOC:
      return ContextLevel::kAlloc;
    case torch_cuda::RecordContext::ALL:
      return ContextLevel::kAll;
  }
  TORCH_CHECK(false, "invalid RecordContext: ", static_cast<int>(when));
}

}  // namespace

void start_history(Allocator& allocator) {
  set_trace_clock(&approximate_time);
  static_cast<void>(clock_pair());
  std::vector<TraceTracker> early;
  {
    EarlyTrackers& trackers = early_trackers();
    const std::lock_guard lock(trackers.mutex);
    trackers.closed = true;
    early.swap(trackers.list);
  }
  for (TraceTracker& tracker : early) allocator.add_trace_tracker(std::move(tracker));
}

void attach_tracker(AllocatorTraceTracker tracker) {
  TraceTracker translated = for_allocator(std::move(tracker));
  {
    EarlyTrackers& trackers = early_trackers();
    const std::lock_guard lock(trackers.mutex);
    if (!trackers.closed) {
      trackers.list.push_back(std::move(translated));
      return;
    }
  }
  allocator_in_use().add_trace_tracker(std::move(translated));
}

HistorySettings to_history_settings(bool enabled, torch_cuda::CreateContextFn recorder,
                                    std::size_t max_entries, torch_cuda::RecordContext when,
                                    bool clear, const std::vector<std::string>& skip_actions) {
  HistorySettings settings;
  settings.enabled = enabled;
  settings.max_entries = max_entries;
  settings.contexts = to_limbo(when);
  settings.clear = clear;
  for (const std::string& name : skip_actions) {
    const auto action = to_limbo(c10::CachingDeviceAllocator::parseTraceEntryAction(name));
    if (action) settings.skipped.set(static_cast<std::size_t>(*action));
  }
  TORCH_CHECK(when == torch_cuda::RecordContext::NEVER || recorder != nullptr,
              "Contexts are to be recorded, and there is no context recorder. Give one, or record "
              "with RecordContext::NEVER.");
  if (enabled) recorder_in_use.store(recorder, std::memory_order_release);
  settings.gather = recorder == nullptr ? nullptr : &gather_context;
  return settings;
}

std::shared_ptr<c10::GatheredContext> to_torch(const CallContext& context) {
  return std::static_pointer_cast<c10::GatheredContext>(context);
}

std::function<c10::time_t(c10::approx_time_t)> make_clock_converter() {
  // Not const in c10, though it changes nothing but its own measurements, which it makes anew.
  auto pair = clock_pair();
  return [convert = pair.makeConverter()](c10::approx_time_t time) { return convert(time) / 1000; };
}

TorchEntry to_torch(const TraceEntry& entry) {
  return {to_torch(entry.action),
          static_cast<c10::DeviceIndex>(entry.device),
          entry.address,
          entry.size_bytes,
          entry.stream,
          to_torch(entry.pool),
          static_cast<c10::approx_time_t>(entry.time),
          to_torch(entry.context),
          entry.compile_context.empty() ? "N/A" : entry.compile_context,  // torch's word for none
          entry.user_metadata};
}

void Annotations::set(const HistorySettings& settings) {
  const std::lock_guard lock(mutex_);
  max_entries_ = std::max<std::size_t>(settings.max_entries, 1);
  if (!settings.enabled || settings.clear) ring_.clear();
  while (ring_.size() > max_entries_) ring_.pop_front();
}

void Annotations::add(Entry entry) {
  const std::lock_guard lock(mutex_);
  ring_.push_back(std::move(entry));
  if (ring_.size() > max_entries_) ring_.pop_front();
}

std::vector<Annotations::Entry> Annotations::entries() const {
  const std::lock_guard lock(mutex_);
  return {ring_.begin(), ring_.end()};
}

}  // namespace limbo
