// Threads' caches as the allocator sees them: made at a thread's first use, swept from outside,
// emptied at the thread's end.
#include <algorithm>

#include "allocator/allocator_impl.h"

namespace limbo {

// Null where this thread has no cache: then its calls go the central way.
ThreadCache* Allocator::Impl::find_thread_cache() noexcept {
  auto& words = thread_registry::words;
  if (words.ended || thread_cache_limit_bytes == 0) return nullptr;
  if (!thread_registry::can_watch_ends()) return nullptr;
  for (ThreadCache* cache = words.first; cache != nullptr; cache = cache->next_of_thread) {
    if (cache->owner_id() == id) return words.current = cache;
  }
  try {
    return words.current = make_thread_cache();
  } catch (...) {  // no host memory: it works without
    return nullptr;
  }
}

ThreadCache* Allocator::Impl::make_thread_cache() {
  auto made = std::make_unique<ThreadCache>(*this, id, heaps.size(), thread_cache_limit_bytes);
  ThreadCache* cache = made.get();
  const std::lock_guard registry(thread_registry::mutex());
  caches.push_back(cache);
  try {
    for (const auto& at : heaps) {
      const std::lock_guard lock(at->mutex);
      at->counters.add_thread(&cache->counters(at->device));
    }
    thread_registry::adopt(made);
  } catch (...) {
    retire(*cache);
    throw;
  }
  return cache;
}

// A thread that has freed nothing of the stream has no cache for it. Where others have, it gets one
// at its first miss, or a thread that only allocates would never see what they leave in the depot.
// Whether it got one.
bool Allocator::Impl::open_where_others_free(DeviceHeap& at, StreamRef stream) noexcept {
  ThreadCache* cache = thread_cache();
  if (cache == nullptr || !cache->has_room()) return false;
  {
    const GateVisit visit(cache->gate());
    if (!visit || cache->find(stream) != nullptr) return false;
  }
  {
    const std::lock_guard lock(at.mutex);
    if (!at.depots.contains(stream.handle)) return false;
  }
  open_stream(*cache, stream);
  return true;
}

// Gives this thread a cache for the stream.
void Allocator::Impl::open_stream(ThreadCache& cache, StreamRef stream) noexcept {
  if (!cache.has_room()) return;
  DeviceHeap& at = *heaps[static_cast<std::size_t>(stream.device)];
  try {
    StreamDepot* depot = nullptr;
    {
      const std::lock_guard lock(at.mutex);
      auto known = at.depots.find(stream.handle);
      if (known == at.depots.end()) {
        known =
            at.depots.emplace(stream.handle, std::make_unique<StreamDepot>(at.depot_room)).first;
      }
      depot = known->second.get();
    }
    auto made =
        std::make_unique<StreamCache>(stream, *depot, cache.counters(stream.device), at.counters);
    const GateVisit visit(cache.gate());
    if (visit) cache.add(std::move(made));
  } catch (const std::bad_alloc&) {  // it works without
  }
}

void Allocator::Impl::retire(ThreadCache& cache) noexcept {
  for (const auto& at : heaps) {
    ChainList all;
    cache.take_all(at->device, all);
    const std::lock_guard lock(at->mutex);
    at->give_all(all, own_counters(*at));
    at->counters.remove_thread(&cache.counters(at->device));
  }
  std::erase(caches, &cache);
}

void Allocator::Impl::put_or_give(ThreadCache& cache, Block* block) noexcept {
  if (cache.is_full_for(block->size_bytes)) {
    for (const auto& at : heaps) give_own(*at, cache);
  }
  DeviceHeap& at = heap_of(*block);
  ChainList overflow;
  const std::lock_guard lock(at.mutex);
  {
    const GateVisit visit(cache.gate());
    StreamCache* const to = visit ? cache.find(block->segment->stream) : nullptr;
    if (to == nullptr || !cache.put(*to, block, &overflow)) {
      Chain alone;
      alone.push(block);
      overflow.push(alone);
    }
  }
  at.give_all(overflow, own_counters(at));
}

// Where several threads want the heap lock at once, who has it takes what it will come for again.
void Allocator::Impl::take_ahead(DeviceHeap& from, const Request& request) noexcept {
  if (request.pool != nullptr || sizes::is_large(request.size_bytes)) return;
  ThreadCache* const cache = own_cache();
  if (cache == nullptr || from.counters.caches_bypassed()) return;
  const GateVisit visit(cache->gate());
  StreamCache* const to = visit ? cache->find(request.stream) : nullptr;
  if (to == nullptr) return;
  const CountersChange change(from.counters, own_counters(from));
  for (std::uint32_t wanted = to->count_miss(request.size_bytes); wanted > 0; --wanted) {
    Block* block = from.find_fit(*from.default_pool, request.stream.handle, request.size_bytes);
    if (block == nullptr || !from.try_cut_for_cache(block, request.size_bytes)) return;
    if (cache->put(*to, block, nullptr)) continue;
    from.give(block, true);
    return;
  }
}

void Allocator::Impl::give_own(DeviceHeap& at, ThreadCache& cache) noexcept {
  ChainList all;
  // Going into the gate never waits, and nobody waits for this lock inside of it.
  const std::lock_guard lock(at.mutex);
  {
    const GateVisit visit(cache.gate());
    if (visit) cache.take_all(at.device, all);
  }
  at.give_all(all, own_counters(at));
}

// Also of caches that look empty: their threads may have a chain of the depot in their hands. The
// gates are opened again before anybody walks along the chains.
void Allocator::Impl::reclaim_caches(DeviceHeap& at, StoppedGates& gates) {
  ChainList all;
  gates.stop_all();
  for (ThreadCache* cache : gates.caches()) cache->take_all(at.device, all);
  for (const auto& [stream, depot] : at.depots) depot->take_all(all);
  gates.reopen();
  at.give_all(all, own_counters(at));
  at.grown_unswept_bytes = 0;
}

void Allocator::Impl::reclaim_caches(DeviceHeap& at) {
  StoppedGates gates(*this, StoppedGates::Later{});
  const std::lock_guard lock(at.mutex);
  reclaim_caches(at, gates);
}

void* Allocator::Impl::reclaim_and_take(DeviceHeap& at, const Request& request) {
  StoppedGates gates(*this, StoppedGates::Later{});
  const std::lock_guard lock(at.mutex);
  reclaim_caches(at, gates);
  return take_free(at, request, Fit::kAny);
}

// What needs nobody to stand still: what full bins left behind, and this thread's own blocks.
void Allocator::Impl::reclaim_own(DeviceHeap& at) {
  ThreadCache* const own = thread_cache();
  ChainList all;
  const std::lock_guard lock(at.mutex);
  if (own != nullptr) {
    const GateVisit visit(own->gate());
    if (visit) own->take_all(at.device, all);
  }
  for (const auto& [stream, depot] : at.depots) depot->take_all(all);
  at.give_all(all, own_counters(at));
  at.grown_unswept_bytes = 0;
}

// What a small request may leave in caches and take a segment instead. Threads that live on
// different sizes would else empty each other's caches again and again: each lacks what another has
// for a moment.
std::size_t Allocator::Impl::unswept_bytes(const DeviceHeap& at) noexcept {
  constexpr std::size_t kAlways = 8 * sizes::kMiB;
  constexpr std::size_t kNever = 64 * sizes::kMiB;
  return std::clamp(at.reserved_bytes / 8, kAlways, kNever);
}

// Of all threads.
std::size_t Allocator::Impl::bytes_in_caches() const {
  const std::lock_guard registry(thread_registry::mutex());
  std::size_t held_bytes = 0;
  for (const ThreadCache* cache : caches) held_bytes += cache->held_bytes();
  return held_bytes;
}

bool Allocator::Impl::caches_hold_much(const DeviceHeap& at) const {
  const std::size_t held_bytes = bytes_in_caches();
  const std::lock_guard lock(at.mutex);
  return held_bytes > unswept_bytes(at);
}

// Whether a small request takes a segment before even the depot and its own thread's cache are
// emptied. Where one thread frees what another allocates, the depot is empty again and again, and
// what it has just got would go to the free lists, from where it comes block by block: the two need
// more blocks under way, not other ones. So much between two sweeps, and only beside other threads.
// Where the caches and the depot hold much already, or allocations pass them by, it would only grow.
bool Allocator::Impl::may_grow_unswept(DeviceHeap& at, std::size_t segment_bytes) const {
  {
    const std::lock_guard registry(thread_registry::mutex());
    if (caches.size() < 2) return false;
  }
  const std::size_t held_bytes = bytes_in_caches() + at.depot_room.held_bytes();
  const std::lock_guard lock(at.mutex);
  if (at.counters.caches_bypassed()) return false;
  const std::size_t allowed_bytes = unswept_bytes(at);
  if (held_bytes > allowed_bytes || at.grown_unswept_bytes + segment_bytes > allowed_bytes) {
    return false;
  }
  at.grown_unswept_bytes += segment_bytes;
  return true;
}

void Allocator::Impl::bypass_caches(DeviceHeap& at) {
  at.counters.bypass_caches();
  try {
    reclaim_caches(at);
  } catch (...) {
    allow_caches(at);
    throw;
  }
}

void Allocator::Impl::reclaim_large(DeviceHeap& at) {
  ThreadCache* const own = thread_cache();
  // What can fail comes before anything is taken, and the registry lock is kept until all of it is in
  // the free lists: whoever is about to give up sweeps first, and so waits for it. This thread's own
  // gate need not be stopped.
  StoppedGates stopped(
      *this, [own](const ThreadCache& cache) { return &cache != own && cache.may_hold_large(); });
  ChainList all;
  if (own != nullptr && own->may_hold_large()) {
    const GateVisit visit(own->gate());  // which nobody else can have stopped
    if (visit) own->take_large(at.device, all);
  }
  for (ThreadCache* cache : stopped.caches()) cache->take_large(at.device, all);
  stopped.reopen();
  if (all.empty()) return;
  const std::lock_guard lock(at.mutex);
  at.give_all(all, own_counters(at));
}

void Allocator::Impl::StoppedGates::stop_all() {
  stopped_ = impl_->caches;
  try {
    stop();
  } catch (...) {
    stopped_.clear();
    throw;
  }
}

void Allocator::Impl::StoppedGates::stop() {
  if (stopped_.empty()) return;
  for (ThreadCache* cache : stopped_) cache->gate().ask_to_stop();
  try {
    Gate::barrier();
  } catch (...) {
    for (ThreadCache* cache : stopped_) cache->gate().cancel_stop();
    throw;
  }
  for (ThreadCache* cache : stopped_) cache->gate().wait_until_stopped();
}

void Allocator::Impl::StoppedGates::reopen() noexcept {
  for (ThreadCache* cache : stopped_) cache->gate().reopen();
  stopped_.clear();
}

}  // namespace limbo
