// Misses, in the order of the design: completed events; free-memory callbacks; caches and depot; a
// new segment; a private pool that serves in need; pieces back to the driver, those that others map
// included; a thorough collect; then out-of-memory. After every step that may have freed something
// the search is done again. Beside a capture nothing is asked of events and nothing goes back.
#include <algorithm>
#include <optional>

#include "allocator/allocator_impl.h"
#include "allocator/error.h"

namespace limbo {
namespace {

// How often a thread that found nothing, while another one held memory in its hands, tries again.
constexpr int kAttempts = 4;
// How long it waits for that other one each time. It is in a driver call, which ends.
constexpr std::chrono::seconds kAttemptWait{5};

class CallbackDepth {
 public:
  CallbackDepth() noexcept { ++thread_registry::words.callback_depth; }
  ~CallbackDepth() { --thread_registry::words.callback_depth; }
  CallbackDepth(const CallbackDepth&) = delete;
  CallbackDepth& operator=(const CallbackDepth&) = delete;
};

bool inside_callback() noexcept {
  return thread_registry::words.callback_depth > 0;
}

// Whether cutting the block for a large request leaves much: then a block may be better that is only
// merged when caches give up their part of it. (In a trace of varying sizes, where large blocks were
// cut while their like lay unmerged in caches, a sixth more memory was taken.)
bool leaves_much(const Block& block, std::size_t size_bytes) noexcept {
  if (!sizes::is_large(size_bytes) || block.size_bytes == size_bytes) return false;
  const bool whole_segment = block.previous == nullptr && block.next == nullptr;
  return whole_segment || block.size_bytes - size_bytes > size_bytes / 2;
}

}  // namespace

void* Allocator::Impl::take_central(DeviceHeap& from, const Request& request, Fit fit) {
  const bool awaited = from.mutex.lock_was_taken();
  const std::lock_guard lock(from.mutex, std::adopt_lock);
  void* data = take_free(from, request, fit);
  if (awaited && data != nullptr) take_ahead(from, request);
  return data;
}

void* Allocator::Impl::take_free(DeviceHeap& from, const Request& request, Fit fit) {
  const CountersChange change(from.counters, own_counters(from));
  const Pool& pool = pool_of(from, request);
  Block* block = from.find_fit(pool, request.stream.handle, request.size_bytes);
  if (block == nullptr) return nullptr;
  if (fit == Fit::kClose && leaves_much(*block, request.size_bytes)) return nullptr;
  return from.hand_out(block, request.size_bytes, request.requested_bytes);
}

// From a private pool that serves requests of the default one before memory is given back.
void* Allocator::Impl::take_in_need(DeviceHeap& from, const Request& request) {
  if (request.pool != nullptr) return nullptr;
  const std::lock_guard lock(from.mutex);
  const CountersChange change(from.counters, own_counters(from));
  Block* block = from.find_fit_in_need(request.stream.handle, request.size_bytes);
  if (block == nullptr) return nullptr;
  return from.hand_out(block, request.size_bytes, request.requested_bytes);
}

void* Allocator::Impl::search(const Request& request) {
  if (request.pool == nullptr) {
    if (void* data = take_cached_again(request); data != nullptr) return data;
  }
  return search_central(request);
}

// Where the hit did not ask the depot: too much of it had gone from thread to thread in this window,
// or this thread has no cache for the stream.
void* Allocator::Impl::take_from_depot(DeviceHeap& at, const Request& request) {
  if (request.pool != nullptr || sizes::is_large(request.size_bytes)) return nullptr;
  if (at.counters.flow_is_long()) {
    const std::lock_guard lock(at.mutex);
    const CountersChange change(at.counters, own_counters(at));  // ends the window
  } else if (!open_where_others_free(at, request.stream)) {
    return nullptr;
  }
  return take_cached_again(request);
}

void* Allocator::Impl::search_central(const Request& request) {
  DeviceHeap& from = *heaps[static_cast<std::size_t>(request.stream.device)];
  if (request.pool == nullptr && sizes::is_large(request.size_bytes)) {
    if (void* data = take_central(from, request, Fit::kClose)) return data;
    reclaim_large(from);
  }
  return take_central(from, request, Fit::kAny);
}

// Runs with no lock held; several threads may be here at once. A callback that allocates comes back
// to the slow path on the same thread: there callbacks are left out, or it would never end.
void Allocator::Impl::run_callbacks() {
  if (inside_callback()) return;
  const CallbackDepth depth;
  if (Lender* const asked = lender.load(std::memory_order_acquire); asked != nullptr) {
    static_cast<void>(asked->collect());
  }
  for (Callback* callback = first_callback.load(std::memory_order_acquire); callback != nullptr;
       callback = callback->next.load(std::memory_order_acquire)) {
    // The answer is a hint, and a wrong one at times: the search is done again anyway.
    static_cast<void>(callback->call());
  }
}

// A piece of size_bytes, entered as a segment that is in transit; null if the driver has no room.
// What could not be entered goes back to its maker, as if it had never been.
Segment* Allocator::Impl::take_piece(DeviceHeap& at, const Request& request,
                                     std::size_t size_bytes) {
  used.store(true, std::memory_order_relaxed);
  Pool& pool = pool_of(at, request);
  Provider& maker = maker_of(pool);
  void* base = make_piece(at, pool, size_bytes);
  if (base == nullptr) return nullptr;
  try {
    const std::lock_guard lock(at.mutex);
    const CountersChange change(at.counters, own_counters(at));
    return &at.add_segment(pool, maker, base, size_bytes, request.stream,
                           sizes::is_large(request.size_bytes));
  } catch (...) {
    try {
      maker.return_piece(at.device, base, size_bytes);
    } catch (...) {  // the first error is the one to report
    }
    throw;
  }
}

// A new segment of size_bytes; null if the driver or the limit has no room.
void* Allocator::Impl::grow(DeviceHeap& at, const Request& request, std::size_t size_bytes) {
  DeviceHeap::Work work(at);
  {
    const std::lock_guard lock(at.mutex);
    if (at.limit_bytes != 0 && at.reserved_bytes + size_bytes > at.limit_bytes) return nullptr;
    at.reserved_bytes += size_bytes;
    work.begin();
  }
  Segment* segment = nullptr;
  try {
    segment = take_piece(at, request, size_bytes);
  } catch (...) {
    const std::lock_guard lock(at.mutex);
    at.reserved_bytes -= size_bytes;
    throw;
  }
  if (segment == nullptr) {
    const std::lock_guard lock(at.mutex);
    at.reserved_bytes -= size_bytes;
    work.end();
    return nullptr;
  }
  announce_piece(at, *segment);
  const std::lock_guard lock(at.mutex);
  const CountersChange change(at.counters, own_counters(at));
  at.list_segment(*segment);
  work.end();
  // Under the same lock, so that no other thread takes it away.
  return at.hand_out(segment->first, request.size_bytes, request.requested_bytes);
}

void* Allocator::Impl::allocate_slow(const Request& asked) {
  require_named(asked.stream);
  DeviceHeap& at = *heaps[static_cast<std::size_t>(asked.stream.device)];
  const std::shared_ptr<Pool> routed = routed_pool(at, asked.stream);  // keeps it alive
  Request request = asked;
  request.pool = routed.get();
  request.size_bytes = rounded_size(at, asked);
  if (request.size_bytes != asked.size_bytes && request.pool == nullptr) {
    // The hit that was looked for was one of another size.
    if (void* data = take_cached_again(request); data != nullptr) return data;
  }
  if (void* data = take_from_depot(at, request)) return data;
  const TraceCall call(at.trace, ContextLevel::kState);
  complete_events(at);
  if (request.pool != nullptr) reuse_in_capture(at, request);
  if (void* data = search_central(request)) return data;  // the caches have been looked at
  run_callbacks();
  if (void* data = search(request)) return data;
  if (request.pool == nullptr) {  // caches hold nothing of other pools
    const bool large = sizes::is_large(request.size_bytes);
    if (large || !may_grow_unswept(at, segment_size(request.size_bytes))) {
      reclaim_own(at);
      if (void* data = search_central(request)) return data;
      if (large || caches_hold_much(at)) reclaim_caches(at);
    }
    // In any case: the question may have waited for another thread's sweep.
    if (void* data = search(request)) return data;
  }
  collect_garbage(at, request);
  if (void* data = grow(at, request, segment_size(request.size_bytes))) return data;
  if (void* data = take_in_need(at, request)) return data;
  return make_room(at, request);
}

void* Allocator::Impl::make_room(DeviceHeap& at, const Request& request) {
  if (!in_capture(at, request)) {
    const std::lock_guard lock(at.mutex);
    ++at.counters.num_alloc_retries;
  }
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    std::optional<DeviceHeap::OthersWork> others;
    {
      const std::lock_guard lock(at.mutex);
      others.emplace(at);
    }
    if (void* data = make_room_once(at, request)) return data;
    // Another thread may hold what this one did not find: memory on its way to or from the driver.
    std::unique_lock lock(at.mutex);
    if (at.idle() && !others->has_ended()) break;
    at.work_done.wait_for(lock, kAttemptWait, [&] { return at.idle(); });
  }
  throw_out_of_memory(at, request);
}

void* Allocator::Impl::make_room_once(DeviceHeap& at, const Request& request) {
  if (in_capture(at, request)) return make_room_in_capture(at, request);
  wait_for_events(at);
  if (void* data = reclaim_and_take(at, request)) return data;
  if (void* data = take_in_need(at, request)) return data;
  if (void* data = return_and_grow(at, request)) return data;
  Lender* const asked = lender.load(std::memory_order_acquire);
  // Inside a callback the lender may be the one who called: it is not asked to wait for itself.
  if (asked == nullptr || inside_callback()) return nullptr;
  static_cast<void>(asked->collect_thoroughly(at.device, collect_wait));
  wait_for_events(at);
  if (void* data = reclaim_and_take(at, request)) return data;
  return return_and_grow(at, request);
}

// What is left beside a capture: what other threads have freed meanwhile, and what the lender finds.
void* Allocator::Impl::make_room_in_capture(DeviceHeap& at, const Request& request) {
  if (void* data = reclaim_and_take(at, request)) return data;
  if (void* data = take_in_need(at, request)) return data;
  if (void* data = grow(at, request, sizes::least_segment_size(request.size_bytes))) return data;
  // Lent memory is of the default pool.
  Lender* const asked = lender.load(std::memory_order_acquire);
  if (asked == nullptr || request.pool != nullptr || inside_callback()) return nullptr;
  static_cast<void>(asked->collect_thoroughly(at.device, collect_wait));
  return reclaim_and_take(at, request);
}

void* Allocator::Impl::return_and_grow(DeviceHeap& at, const Request& request) {
  const std::size_t wanted_bytes = segment_size(request.size_bytes);
  const std::size_t least_bytes = sizes::least_segment_size(request.size_bytes);
  // Not everything that is unused, where less is enough: the rest is not to be taken anew next time.
  if (return_uncut(at, request)) {
    if (void* data = grow(at, request, wanted_bytes)) return data;
  }
  static_cast<void>(return_pieces(at));
  if (void* data = grow(at, request, wanted_bytes)) return data;
  if (least_bytes != wanted_bytes) {
    if (void* data = grow(at, request, least_bytes)) return data;
  }
  Lender* const asked = lender.load(std::memory_order_acquire);
  if (asked == nullptr || inside_callback()) return search(request);
  // Readers close one piece after another, and the request may need several.
  const auto deadline = std::chrono::steady_clock::now() + unmap_wait;
  std::chrono::milliseconds left = unmap_wait;
  do {
    if (!keeps_pieces_for_readers(at) || !asked->wait_for_unmapped_pieces(at.device, left)) break;
    static_cast<void>(return_pieces(at));
    if (void* data = grow(at, request, least_bytes)) return data;
    left =
        std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
  } while (left.count() > 0);
  return search(request);
}

void Allocator::Impl::throw_out_of_memory(DeviceHeap& at, const Request& request) {
  std::size_t limit_bytes = 0;
  {
    const std::lock_guard lock(at.mutex);
    // What no device can hold is refused without a look at it.
    if (request.size_bytes < sizes::kExabyte) ++at.counters.num_ooms;
    limit_bytes = at.limit_bytes;
  }
  MemoryInfo info;
  std::string holders;
  std::vector<MemoryUser> users;
  try {
    info = device.memory_info(at.device);
    // Nobody reads them where no device could hold the request.
    if (request.size_bytes < sizes::kExabyte) users = find_memory_users(device, at.device);
    Lender* const asked = lender.load(std::memory_order_acquire);
    if (asked != nullptr) holders = asked->describe_holders(at.device);
  } catch (const std::exception&) {  // the report goes out with what is known
  }
  {
    const std::lock_guard lock(at.mutex);
    at.trace.record(TraceAction::kOutOfMemory, info.free_bytes, request.size_bytes,
                    request.stream.handle, pool_of(at, request).id, TraceCall::context());
  }
  OutOfMemory failure(at.device, request.requested_bytes, info, stats(at), limit_bytes,
                      std::move(holders), std::move(users));
  if (request.requested_bytes < sizes::kExabyte) {
    failure.size_bytes = request.size_bytes;
    failure.segment_bytes = segment_size(request.size_bytes);
  }
  throw failure;
}

}  // namespace limbo
