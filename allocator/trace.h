// The history of one device's memory: what was asked for, given, taken back and returned, in order.
//
// It costs nothing while nobody wants it. While it is recorded or tracked, calls go the central way,
// so that the heap lock gives every entry its place.
//
// Who wants entries:
// - the ring keeps the last ones for whoever asks (Allocator::snapshot_with_traces), from
//   set_history on;
// - trackers are called with every entry, whether or not a history is recorded.
//
// Contexts (say, stack traces) are gathered before the heap lock is taken, because gathering may
// take other locks, Python's included; see TraceCall. For what a tracker itself calls none is
// gathered: whoever has such a lock may be waiting for the tracker.
//
// Trackers are called with no lock held, by one thread at a time: the one that has the *turn*.
// Whoever comes meanwhile leaves its entries to that one and goes on, as long as few are untold; where
// there are many, or the other has told a batch already and wants to leave, it waits for the turn
// itself. So a slow tracker holds back those who call the allocator, none of them for ever, and what
// is untold is bounded; but for unpins, which leave their entries whatever there are.
#pragma once

#include <atomic>
#include <bitset>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "allocator/device/device.h"
#include "allocator/heap_mutex.h"
#include "allocator/pool_id.h"
#include "allocator/trace_entry.h"
#include "allocator/trace_ring.h"

namespace limbo {

class DeviceHeap;

// Which calls contexts are gathered for. Each includes those before it.
enum class ContextLevel : std::uint8_t {
  kNever = 0,
  kState,  // kept with blocks while they are allocated, and with segments
  kAlloc,  // kept in entries too
  kAll,    // frees, and memory given back, have one of their own
};

struct HistorySettings {
  bool enabled = false;
  std::size_t max_entries = 1;  // of each device; the oldest make room; 0 counts as 1
  ContextLevel contexts = ContextLevel::kNever;
  // Makes a context for the calling thread; null only with kNever. What it throws is dropped, and
  // the call goes without a context. Not called inside a tracker, so it may take any lock that others
  // hold when they call the allocator.
  CallContext (*gather)() = nullptr;
  bool clear = false;                  // forget what was recorded before; also when not enabled
  std::bitset<kTraceActions> skipped;  // by action: not kept in the ring (trackers get it)
};

using TraceTracker = std::function<void(const TraceEntry&)>;

// What a thread's entries say beside the memory. Each thread has its own, empty at first.
struct ThreadNotes {
  std::vector<std::string> compile_contexts;  // the innermost is last
  std::string user_metadata;
};

// The calling thread's; null when the thread is ending.
[[nodiscard]] ThreadNotes* thread_notes();

// The clock of all entries, any unit; in steady nanoseconds unless it is set. For the start of the
// process: entries of two clocks do not compare.
void set_trace_clock(std::uint64_t (*now)() noexcept) noexcept;

// One device's history. `heap_lock` guards everything that says nothing else.
class Trace {
 public:
  // So many entries may wait for the trackers; then threads wait for them.
  static constexpr std::size_t kMaxUntold = 1000;

  // `moved` is notified when a thread gives up the turn, or begins to wait for it in the midst of a
  // work of `heap`.
  Trace(const DeviceHeap& heap, int device, HeapMutex& heap_lock,
        std::condition_variable_any& moved) noexcept
      : heap_(heap), device_(device), heap_lock_(heap_lock), moved_(moved) {}
  Trace(const Trace&) = delete;
  Trace& operator=(const Trace&) = delete;

  // ---- any thread, with or without the lock ----

  // Whether anybody wants entries.
  [[nodiscard]] bool active() const noexcept { return active_.load(std::memory_order_relaxed); }

  // A context for this call, where the settings want one for `level`; none inside a tracker. Caller
  // holds no lock.
  [[nodiscard]] CallContext gather(ContextLevel level) const noexcept;

  // ---- caller holds the heap lock ----

  void set(const HistorySettings& settings);
  void make_room_for_tracker() { trackers_.reserve(trackers_.size() + 1); }
  void add_tracker(std::shared_ptr<const TraceTracker> tracker) noexcept;  // there is room for it
  [[nodiscard]] bool recording() const noexcept { return settings_.enabled; }
  [[nodiscard]] ContextLevel contexts() const noexcept { return settings_.contexts; }
  [[nodiscard]] TraceRing::View entries() const { return ring_.view(); }
  // How many works of the heap are those of threads that wait until the calling one, which is inside
  // a tracker, comes out.
  [[nodiscard]] std::size_t works_waiting_for_this_thread() const noexcept;

  // Writes an entry for everybody who wants it; does nothing if nobody does. Segments' entries are
  // for the ring alone: trackers are told of them by tell_now. Where host memory is short the entry
  // is lost, and nothing else.
  void record(TraceAction action, std::uintptr_t address, std::size_t size_bytes,
              StreamHandle stream, PoolId pool, const CallContext& context) noexcept;

  // ---- caller holds no lock ----

  // Sees to it that the trackers are called with what has been recorded, in order, each entry once:
  // by this thread, or by the one that has the turn. Inside a tracker it never waits; nor with kNo,
  // and then entries beyond the bound may stay with the one that has the turn. What a tracker throws
  // is dropped.
  enum class Wait : std::uint8_t { kNo, kYes };
  void tell(Wait wait = Wait::kYes) noexcept;

  // Calls the trackers with one segment's entry before it returns, behind what has been recorded;
  // waits for the turn. What one throws is thrown, when `take_back` has been called and those before
  // it have been told the opposite: all know, or none. So is std::bad_alloc. Inside a tracker nothing
  // is waited for: then the entry goes before what that thread has not told yet; and where it is
  // another device's tracker, a second thread may be calling this one's meanwhile.
  void tell_now(TraceAction action, std::uintptr_t address, std::size_t size_bytes,
                StreamHandle stream, PoolId pool, const CallContext& context,
                const std::function<void()>& take_back);

 private:
  using Trackers = std::vector<std::shared_ptr<const TraceTracker>>;

  [[nodiscard]] TraceEntry make(TraceAction action, std::uintptr_t address, std::size_t size_bytes,
                                StreamHandle stream, PoolId pool, const CallContext& context) const;
  void update_active() noexcept;

  class Turn;
  // Caller holds the heap lock.
  [[nodiscard]] bool turn_is_free(bool for_first) const noexcept {
    return !turn_taken_ && (for_first || first_waiting_ == 0);
  }
  void wait_for_turn(std::unique_lock<HeapMutex>& lock, bool as_first);
  static void call(const Trackers& trackers, std::vector<TraceEntry>& entries) noexcept;
  static void call_or_undo(const Trackers& trackers, TraceEntry& entry,
                           const std::function<void()>& take_back);

  const DeviceHeap& heap_;
  const int device_;
  HeapMutex& heap_lock_;
  std::condition_variable_any& moved_;
  std::atomic<bool> active_{false};
  // What gather reads, also in settings_.
  std::atomic<ContextLevel> gather_for_{ContextLevel::kNever};
  std::atomic<CallContext (*)()> gather_with_{nullptr};

  HistorySettings settings_;
  TraceRing ring_;
  Trackers trackers_;
  std::vector<TraceEntry> untold_;  // recorded, and not told to the trackers yet
  bool turn_taken_ = false;         // a thread is calling them
  bool wants_relief_ = false;       // and it has told a batch before this one
  std::size_t waiting_ = 0;         // threads that wait for the turn
  std::size_t first_waiting_ = 0;   // of them, those in tell_now: they are the next
  std::size_t works_waiting_ = 0;   // that they are in the midst of
};

// A call into the allocator as its history sees it: gathers the context when it begins, holds it for
// the entries that the thread records meanwhile, and lets the trackers know when it ends. Calls nest
// (a free-memory callback may free and allocate); the innermost counts. Lives on the stack, around
// the time in which locks are held.
class TraceCall {
 public:
  TraceCall(Trace& trace, ContextLevel level) noexcept;
  ~TraceCall();
  TraceCall(const TraceCall&) = delete;
  TraceCall& operator=(const TraceCall&) = delete;

  // The context of this thread's innermost call; null if it has none.
  [[nodiscard]] static const CallContext& context() noexcept;
  // The same where that call takes or gives back (ContextLevel::kAll), else `other`: a block that
  // became free during somebody else's allocation was not freed by it.
  [[nodiscard]] static const CallContext& context_of_free(const CallContext& other) noexcept;

 private:
  Trace& trace_;
  const bool active_;
  ContextLevel level_ = ContextLevel::kNever;
  CallContext context_;
  TraceCall* outer_ = nullptr;
};

}  // namespace limbo
