#include "allocator/trace.h"

#include <algorithm>
#include <chrono>
#include <new>
#include <utility>

namespace limbo {
namespace {

std::uint64_t steady_nanoseconds() noexcept {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return static_cast<std::uint64_t>(
      std::chrono::duration_cast<std::chrono::nanoseconds>(now).count());
}

std::atomic<std::uint64_t (*)() noexcept> trace_clock{&steady_nanoseconds};

thread_local constinit TraceCall* innermost_call = nullptr;

const CallContext& no_context() noexcept {
  // Never destroyed: entries are made until the very end of the process.
  alignas(CallContext) static std::byte room[sizeof(CallContext)];
  static const auto* none = new (room) CallContext;
  return *none;
}

// A thread may free memory while its thread-local objects are destroyed, in any order: a plain word
// tells whether its notes are still there.
thread_local constinit bool notes_are_gone = false;

struct NotesHolder {
  NotesHolder() = default;
  ~NotesHolder() { notes_are_gone = true; }
  NotesHolder(const NotesHolder&) = delete;
  NotesHolder& operator=(const NotesHolder&) = delete;
  ThreadNotes notes;
};

}  // namespace

ThreadNotes* thread_notes() {
  if (notes_are_gone) return nullptr;
  static thread_local NotesHolder holder;
  return &holder.notes;
}

void set_trace_clock(std::uint64_t (*now)() noexcept) noexcept {
  trace_clock.store(now, std::memory_order_relaxed);
}

// ---- settings -----------------------------------------------------------------------------------

CallContext Trace::gather(ContextLevel level) const noexcept {
  if (gather_for_.load(std::memory_order_relaxed) < level) return nullptr;
  const auto make_context = gather_with_.load(std::memory_order_acquire);
  if (make_context == nullptr) return nullptr;
  try {
    return make_context();
  } catch (...) {  // an allocation does not fail because nobody can say where it comes from
    return nullptr;
  }
}

void Trace::set(const HistorySettings& settings) {
  settings_ = settings;
  settings_.max_entries = std::max<std::size_t>(settings.max_entries, 1);
  if (!settings.enabled) settings_.contexts = ContextLevel::kNever;
  if (!settings.enabled || settings.clear) ring_.clear();
  while (ring_.size() > settings_.max_entries) ring_.pop_front();
  gather_with_.store(settings.enabled ? settings.gather : nullptr, std::memory_order_release);
  gather_for_.store(settings_.contexts, std::memory_order_relaxed);
  update_active();
}

void Trace::add_tracker(std::shared_ptr<const TraceTracker> tracker) noexcept {
  trackers_.push_back(std::move(tracker));
  update_active();
}

void Trace::update_active() noexcept {
  active_.store(settings_.enabled || !trackers_.empty(), std::memory_order_relaxed);
}

// ---- entries ------------------------------------------------------------------------------------

TraceEntry Trace::make(TraceAction action, std::uintptr_t address, std::size_t size_bytes,
                       StreamHandle stream, PoolId pool, const CallContext& context) const {
  TraceEntry entry;
  entry.action = action;
  entry.device = device_;
  entry.address = address;
  entry.size_bytes = size_bytes;
  entry.stream = stream;
  entry.pool = pool;
  entry.time = trace_clock.load(std::memory_order_relaxed)();
  if (gather_for_.load(std::memory_order_relaxed) >= ContextLevel::kAlloc) entry.context = context;
  if (const ThreadNotes* notes = thread_notes(); notes != nullptr) {
    if (!notes->compile_contexts.empty()) entry.compile_context = notes->compile_contexts.back();
    entry.user_metadata = notes->user_metadata;
  }
  return entry;
}

void Trace::record(TraceAction action, std::uintptr_t address, std::size_t size_bytes,
                   StreamHandle stream, PoolId pool, const CallContext& context) noexcept {
  if (!active()) return;
  const bool of_segment =
      action == TraceAction::kSegmentAlloc || action == TraceAction::kSegmentFree;
  const bool tracked = !trackers_.empty() && !of_segment;
  const bool kept = settings_.enabled && !settings_.skipped.test(static_cast<std::size_t>(action));
  if (!tracked && !kept) return;
  try {
    TraceEntry entry = make(action, address, size_bytes, stream, pool, context);
    if (tracked) untold_.push_back(entry);
    if (!kept) return;
    ring_.push_back(std::move(entry));
    if (ring_.size() > settings_.max_entries) ring_.pop_front();
  } catch (...) {  // no host memory: the heap under this lock is worth more than one entry
  }
}

std::vector<TraceEntry> Trace::entries() const {
  return {ring_.begin(), ring_.end()};
}

// ---- trackers -----------------------------------------------------------------------------------

void Trace::tell() noexcept {
  if (!active()) return;
  while (true) {
    std::vector<TraceEntry> batch;
    Trackers called;
    {
      const std::lock_guard lock(heap_lock_);
      // A tracker that calls the allocator comes here too: what it records is told when it is done.
      if (telling_ || untold_.empty()) return;
      try {
        called = trackers_;
      } catch (...) {  // no host memory: a later call tells them
        return;
      }
      batch.swap(untold_);
      telling_ = true;
    }
    for (const TraceEntry& entry : batch) {
      for (const auto& tracker : called) {
        try {
          (*tracker)(entry);
        } catch (...) {  // the call that the entry is about has happened
        }
      }
    }
    const std::lock_guard lock(heap_lock_);
    telling_ = false;
  }
}

void Trace::tell_now(TraceAction action, std::uintptr_t address, std::size_t size_bytes,
                     StreamHandle stream, PoolId pool, const CallContext& context) {
  if (!active()) return;
  tell();
  Trackers called;
  {
    const std::lock_guard lock(heap_lock_);
    called = trackers_;
  }
  if (called.empty()) return;
  TraceEntry entry = make(action, address, size_bytes, stream, pool, context);
  std::size_t told = 0;
  try {
    for (; told < called.size(); ++told) (*called[told])(entry);
  } catch (...) {
    entry.action = action == TraceAction::kSegmentAlloc ? TraceAction::kSegmentFree
                                                        : TraceAction::kSegmentAlloc;
    while (told-- > 0) {
      try {
        (*called[told])(entry);
      } catch (...) {  // the first failure is the one to report
      }
    }
    throw;
  }
}

// ---- calls --------------------------------------------------------------------------------------

TraceCall::TraceCall(Trace& trace, ContextLevel level) noexcept
    : trace_(trace), active_(trace.active()), level_(level) {
  if (!active_) return;
  context_ = trace.gather(level);
  outer_ = innermost_call;
  innermost_call = this;
}

TraceCall::~TraceCall() {
  if (!active_) return;
  innermost_call = outer_;
  trace_.tell();
}

const CallContext& TraceCall::context() noexcept {
  return innermost_call == nullptr ? no_context() : innermost_call->context_;
}

const CallContext& TraceCall::context_of_free(const CallContext& other) noexcept {
  const bool of_free = innermost_call != nullptr && innermost_call->level_ == ContextLevel::kAll &&
                       innermost_call->context_ != nullptr;
  return of_free ? innermost_call->context_ : other;
}

}  // namespace limbo
