#include "allocator/trace.h"

#include <algorithm>
#include <chrono>
#include <exception>
#include <new>
#include <optional>
#include <utility>

#include "allocator/inside.h"

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
  if (gather_for_.load(std::memory_order_relaxed) < level || Inside<Trace>::any()) return nullptr;
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
  ring_.shrink(settings_.max_entries);
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
    if (kept) ring_.push(std::move(entry), settings_.max_entries);
  } catch (...) {  // no host memory: the heap under this lock is worth more than one entry
  }
}

// ---- trackers -----------------------------------------------------------------------------------

// The right to call the trackers, until its end. Lives on the stack. It begins and ends with the heap
// lock held; at its beginning nobody has it.
class Trace::Turn {
 public:
  explicit Turn(Trace& of) noexcept : of_(of), inside_(of) { of_.turn_taken_ = true; }
  ~Turn() {
    of_.turn_taken_ = of_.wants_relief_ = false;
    if (of_.waiting_ != 0) of_.moved_.notify_all();
  }
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;

 private:
  Trace& of_;
  const Inside<Trace> inside_;
};

std::size_t Trace::works_waiting_for_this_thread() const noexcept {
  return Inside<Trace>::times(*this) != 0 ? works_waiting_ : 0;
}

void Trace::wait_for_turn(std::unique_lock<HeapMutex>& lock, bool as_first) {
  const std::size_t works = Inside<DeviceHeap>::times(heap_);
  ++waiting_;
  if (as_first) ++first_waiting_;
  works_waiting_ += works;
  // Whoever is inside a tracker may be waiting for them.
  if (works != 0) moved_.notify_all();
  moved_.wait(lock, [&] { return turn_is_free(as_first); });
  works_waiting_ -= works;
  if (as_first) --first_waiting_;
  --waiting_;
}

// The entries are over afterwards, with no lock held: contexts end with them.
void Trace::call(const Trackers& trackers, std::vector<TraceEntry>& entries) noexcept {
  for (const TraceEntry& entry : entries) {
    for (const auto& tracker : trackers) {
      try {
        (*tracker)(entry);
      } catch (...) {  // the call that the entry is about has happened
      }
    }
  }
  entries.clear();
}

void Trace::call_or_undo(const Trackers& trackers, TraceEntry& entry,
                         const std::function<void()>& take_back) {
  std::size_t told = 0;
  try {
    for (; told < trackers.size(); ++told) (*trackers[told])(entry);
  } catch (...) {
    take_back();
    entry.action = entry.action == TraceAction::kSegmentAlloc ? TraceAction::kSegmentFree
                                                              : TraceAction::kSegmentAlloc;
    while (told-- > 0) {
      try {
        (*trackers[told])(entry);
      } catch (...) {  // the first failure is the one to report
      }
    }
    throw;
  }
}

// Who has told a batch leaves as soon as somebody waits, so each tells two at most; and who waits
// tells what is left, so nothing is.
void Trace::tell(Wait wait) noexcept {
  if (!active()) return;
  std::unique_lock lock(heap_lock_);
  bool told = false;
  while (!untold_.empty()) {
    if (told && waiting_ != 0) return;
    if (!turn_is_free(false)) {
      const bool left_to_others = untold_.size() < kMaxUntold && !wants_relief_;
      if (left_to_others || wait == Wait::kNo || Inside<Trace>::any()) return;
      wait_for_turn(lock, false);
      continue;
    }
    Trackers called;
    std::vector<TraceEntry> batch;
    try {
      called = trackers_;
    } catch (...) {  // no host memory: a later call tells them
      return;
    }
    batch.swap(untold_);
    const Turn turn(*this);
    wants_relief_ = told;
    lock.unlock();
    call(called, batch);
    lock.lock();
    told = true;
  }
}

void Trace::tell_now(TraceAction action, std::uintptr_t address, std::size_t size_bytes,
                     StreamHandle stream, PoolId pool, const CallContext& context,
                     const std::function<void()>& take_back) {
  if (!active()) return;
  std::exception_ptr failure;
  {
    std::unique_lock lock(heap_lock_);
    if (trackers_.empty()) return;
    if (turn_taken_ && !Inside<Trace>::any()) {
      wait_for_turn(lock, true);
      moved_.notify_all();  // should the next lines fail: others have waited for this thread
    }
    Trackers called;
    TraceEntry entry;
    try {
      called = trackers_;
      entry = make(action, address, size_bytes, stream, pool, context);
    } catch (...) {  // no host memory: nobody has heard of it
      lock.unlock();
      take_back();
      throw;
    }
    std::vector<TraceEntry> before;
    std::optional<Turn> turn;
    if (!turn_taken_) {
      turn.emplace(*this);
      before.swap(untold_);
    }
    lock.unlock();
    call(called, before);
    try {
      call_or_undo(called, entry, take_back);
    } catch (...) {
      failure = std::current_exception();
    }
    lock.lock();
  }
  tell();  // what others have left here meanwhile
  if (failure != nullptr) std::rethrow_exception(failure);
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
