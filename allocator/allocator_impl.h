// What is behind Allocator. Only the allocator's own files include this.
//
// Where to find what: allocator.cpp (the ways in; hits), slow_path.cpp (misses, to out-of-memory),
// policy.cpp (how requests are rounded),
// frees.cpp (frees that the fast way leaves, wrong frees), pins.cpp (pins, limbo), waits.cpp
// (record_stream and events), pieces.cpp (memory back to the driver), caches.cpp (threads' caches:
// made, swept, ended), pools.cpp (private pools, routes), checkpoints.cpp, inspection.cpp (statistics,
// snapshots), history.cpp (its settings), invariants.cpp (what must hold).
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "allocator/allocator.h"
#include "allocator/device_heap.h"
#include "allocator/page_table.h"
#include "allocator/provider_cuda_malloc.h"
#include "allocator/thread_registry.h"

namespace limbo {

struct Request {
  StreamRef stream;
  std::size_t size_bytes = 0;       // rounded
  std::size_t requested_bytes = 0;  // as asked for
  Pool* pool = nullptr;             // null: the default one
};

struct Allocator::Impl final : public ThreadCacheOwner {
  explicit Impl(Device& on_device);
  ~Impl() override;

  // ---- allocator.cpp ----
  [[nodiscard]] DeviceHeap& heap(int device);   // throws kBadArgument
  static void require_named(StreamRef stream);  // throws kBadArgument for cudaStreamPerThread
  [[nodiscard]] DeviceHeap& heap_of(const Block& block) noexcept {
    return *heaps[static_cast<std::size_t>(block.segment->stream.device)];
  }
  // Locks the heap whose memory `data` is in; the lock is empty if there is none.
  [[nodiscard]] std::pair<DeviceHeap*, std::unique_lock<HeapMutex>> lock_heap_at(const void* data);
  // Null: nothing has happened, and the request is to be served the slow way.
  [[nodiscard]] void* take_cached(const Request& request) noexcept;  // inside allocator.cpp
  [[nodiscard]] void* take_cached_again(const Request& request) noexcept;
  [[nodiscard]] void* allocate_missed(const Request& request);
  [[nodiscard]] void* refuse_size(std::size_t size_bytes, StreamRef stream);
  [[nodiscard]] bool free_cached(Block* block, std::uint64_t word);  // inside allocator.cpp
  void count_free(ThreadCache& cache, const Block& block) noexcept;
  [[nodiscard]] bool frees_may_be_cached() const noexcept {
    return free_bypasses.load(std::memory_order_relaxed) == 0;
  }

  // ---- slow_path.cpp ----
  [[nodiscard]] void* allocate_slow(const Request& asked);
  [[nodiscard]] void* search(const Request& request);
  [[nodiscard]] void* take_from_depot(DeviceHeap& at, const Request& request);
  [[nodiscard]] void* search_central(const Request& request);
  enum class Fit : std::uint8_t { kClose, kAny };
  [[nodiscard]] void* take_central(DeviceHeap& from, const Request& request, Fit fit);
  // The same, heap lock held.
  [[nodiscard]] void* take_free(DeviceHeap& from, const Request& request, Fit fit);
  [[nodiscard]] Segment* take_piece(DeviceHeap& at, const Request& request, std::size_t size_bytes);
  [[nodiscard]] void* grow(DeviceHeap& at, const Request& request, std::size_t size_bytes);
  [[nodiscard]] void* make_room(DeviceHeap& at, const Request& request);
  [[nodiscard]] void* make_room_once(DeviceHeap& at, const Request& request);
  [[nodiscard]] void* return_and_grow(DeviceHeap& at, const Request& request);
  [[nodiscard]] void* take_in_need(DeviceHeap& from, const Request& request);
  [[nodiscard]] void* make_room_in_capture(DeviceHeap& at, const Request& request);
  void run_callbacks();
  [[noreturn]] void throw_out_of_memory(DeviceHeap& at, const Request& request);

  // ---- pools.cpp ----
  [[nodiscard]] static Pool& pool_of(DeviceHeap& at, const Request& request) noexcept {
    return request.pool == nullptr ? *at.default_pool : *request.pool;
  }
  [[nodiscard]] Provider& maker_of(const Pool& pool) noexcept {
    return pool.provider == nullptr ? provider : *pool.provider;
  }
  // A new piece for the pool: by its maker, and never memory that lies in a segment already
  // (kBadArgument; the maker has it back then). What the maker itself allocates here meanwhile goes by
  // the pool, or it would never end. Null where there is no room.
  [[nodiscard]] void* make_piece(DeviceHeap& at, const Pool& pool, std::size_t size_bytes);
  // The pool that a standing route gives the stream's allocations; null: the default one.
  [[nodiscard]] std::shared_ptr<Pool> routed_pool(DeviceHeap& at, StreamRef stream);
  // Whether anybody captures into a pool of the device: then no event is asked, and no memory goes
  // back to the driver. A route alone is no capture: torch.cuda.MemPool has one for as long as the
  // program likes, and who fails between its begin and its end leaves one for good. So each route's
  // stream is asked; where a route names none, or it cannot be asked, it counts as captured. Asks the
  // driver, where there are routes: no lock is held.
  [[nodiscard]] bool capturing(DeviceHeap& at) noexcept;
  // Whether the request comes from, or beside, a capture.
  [[nodiscard]] bool in_capture(DeviceHeap& at, const Request& request);
  // What is unused of a pool without use goes back. The caller holds the pool.
  void shrink(DeviceHeap& at, const Pool& pool);
  // Throws kBadArgument where the heap has no such pool. Heap lock held.
  [[nodiscard]] static std::shared_ptr<Pool> known_pool(DeviceHeap& at, PoolId id);

  // ---- policy.cpp ----
  [[nodiscard]] std::size_t segment_size(std::size_t block_bytes) const noexcept;
  // The request's size as the policy rounds it.
  [[nodiscard]] std::size_t rounded_size(const DeviceHeap& at, const Request& request) const;

  // ---- checkpoints.cpp ----
  [[nodiscard]] static std::shared_ptr<Pool> pool_for_checkpoint(DeviceHeap& at, PoolId id);

  // ---- frees.cpp ----
  void free_slow(const void* data, Block* block, std::uint64_t word);
  [[noreturn]] void throw_wrong_free(const void* data);

  // ---- pins.cpp ----
  [[nodiscard]] BlockView view(Block* block) const noexcept;
  void let_go(DeviceHeap& at, Block* block) noexcept;  // heap lock held
  void unpin_last(Block* block);

  // ---- waits.cpp ----
  // Waits of one block, one behind the other in DeviceHeap::unrecorded, in hand.
  struct PlannedWaits {
    WaitList::iterator first;
    std::size_t count = 0;
  };
  // Heap lock held: the block's users become waits, which begin_waits, without the lock, must turn
  // into events.
  [[nodiscard]] static PlannedWaits plan_waits(DeviceHeap& at, Block* block) noexcept;
  void begin_waits(DeviceHeap& at, const PlannedWaits& planned) noexcept;
  [[nodiscard]] EventHandle try_record(StreamRef stream) noexcept;
  // Heap lock held: out of the hand of who tried to record it, and behind the event if there is one.
  void put_down(DeviceHeap& at, WaitList::iterator unrecorded, EventHandle event) noexcept;
  void complete_events(DeviceHeap& at);
  void complete_queue(DeviceHeap& at, const DeviceHeap::StreamKey& key, std::uint64_t youngest);
  void retry_unrecorded(DeviceHeap& at);
  // Blocks of the request's pool and stream that other streams' captured work is done with, where
  // the policy lets a capture reuse them.
  void reuse_in_capture(DeviceHeap& at, const Request& request);
  // Only those of the pool's blocks where `only` names one. Waits for nothing beside a capture.
  enum class Sync : std::uint8_t { kCounted, kUncounted };  // in num_sync_all_streams
  void wait_for_events(DeviceHeap& at, const Pool* only = nullptr, Sync sync = Sync::kCounted);

  // ---- pieces.cpp ----
  std::size_t return_pieces(DeviceHeap& at, const Pool* only = nullptr);
  bool return_piece(DeviceHeap& at, Segment& segment);
  bool return_uncut(DeviceHeap& at, const Request& request);
  void collect_garbage(DeviceHeap& at, const Request& request);
  // Trackers hear of a piece before anybody can be handed a part of it, and before the driver gets
  // it back. Throws what they throw, when take_back has been called; then none of them has heard of
  // it.
  static void tell_of_piece(DeviceHeap& at, TraceAction action, const Segment& segment,
                            const std::function<void()>& take_back);
  static void announce_piece(DeviceHeap& at, Segment& segment);
  static void drop_piece(DeviceHeap& at, Segment& segment) noexcept;
  static void give_back(DeviceHeap& at, Segment& segment);
  static void begin_leaving(DeviceHeap& at, Segment& segment) noexcept;
  static void cancel_leaving(DeviceHeap& at, Segment& segment) noexcept;
  [[nodiscard]] bool keeps_pieces_for_readers(DeviceHeap& at);
  void empty_cache(DeviceHeap& at);

  // ---- caches.cpp ----
  class StoppedGates;
  [[nodiscard]] ThreadCache* thread_cache() noexcept {
    ThreadCache* cache = thread_registry::words.current;
    if (cache != nullptr && cache->owner_id() == id) [[likely]] {
      return cache;
    }
    return find_thread_cache();
  }
  // As far as this thread has a cache, which it has looked for in this call. Makes none, which takes
  // locks.
  [[nodiscard]] ThreadCache* own_cache() const noexcept {
    ThreadCache* cache = thread_registry::words.current;
    return cache != nullptr && cache->owner_id() == id ? cache : nullptr;
  }
  // This thread's counters for the device; null if it has none (yet, or any more).
  [[nodiscard]] ThreadCounters* own_counters(const DeviceHeap& at) const noexcept {
    ThreadCache* cache = own_cache();
    return cache != nullptr ? &cache->counters(at.device) : nullptr;
  }
  [[nodiscard]] ThreadCache* find_thread_cache() noexcept;
  [[nodiscard]] ThreadCache* make_thread_cache();
  void open_stream(ThreadCache& cache, StreamRef stream) noexcept;
  [[nodiscard]] bool open_where_others_free(DeviceHeap& at, StreamRef stream) noexcept;
  void retire(ThreadCache& cache) noexcept override;
  // Free blocks on their way from a cache to the free lists are in none. So they leave it under the
  // heap lock and go on under it, or under the registry lock, for which a sweep waits.
  // A block whose word says that it is cached: into this thread's cache, or to the free lists, as
  // what must make room for it.
  void put_or_give(ThreadCache& cache, Block* block) noexcept;
  // Heap lock held: more blocks of the request's size for this thread's cache, where it has missed
  // that size before.
  void take_ahead(DeviceHeap& from, const Request& request) noexcept;
  void give_own(DeviceHeap& at, ThreadCache& cache) noexcept;
  // Everything that caches and the depot hold of a device to its free lists. The second: and a block
  // for the request out of them, null if there is none. All of it is one moment: what is free then,
  // and in nobody's hands, is found.
  void reclaim_caches(DeviceHeap& at);
  void reclaim_caches(DeviceHeap& at, StoppedGates& gates);  // heap lock held
  [[nodiscard]] void* reclaim_and_take(DeviceHeap& at, const Request& request);
  // Those of the depot and of this thread's cache.
  void reclaim_own(DeviceHeap& at);
  // Under the heap's lock.
  [[nodiscard]] static std::size_t unswept_bytes(const DeviceHeap& at) noexcept;
  [[nodiscard]] std::size_t bytes_in_caches() const;
  [[nodiscard]] bool caches_hold_much(const DeviceHeap& at) const;
  [[nodiscard]] bool may_grow_unswept(DeviceHeap& at, std::size_t segment_bytes) const;
  // The large ones that caches hold.
  void reclaim_large(DeviceHeap& at);
  // From now on allocations of the device go the central way, until allow_caches has been called as
  // often. What caches hold goes to the free lists.
  void bypass_caches(DeviceHeap& at);
  static void allow_caches(DeviceHeap& at) noexcept { at.counters.allow_caches(); }
  // The same for the frees of all devices.
  void bypass_caches_on_free() noexcept { free_bypasses.fetch_add(1, std::memory_order_relaxed); }
  void allow_caches_on_free() noexcept { free_bypasses.fetch_sub(1, std::memory_order_relaxed); }

  // ---- history.cpp ----
  void bypass_caches_for_history();
  void allow_caches_after_history() noexcept;

  // ---- inspection.cpp ----
  [[nodiscard]] DeviceStats stats(DeviceHeap& at);
  [[nodiscard]] DeviceStats read_stats(DeviceHeap& at);  // heap lock held, all gates stopped
  [[nodiscard]] MemorySnapshot take_snapshot(int device, PoolId pool, bool with_traces);
  // `entries`: null if they are not wanted.
  void look(DeviceHeap& at, PoolId pool, std::vector<SegmentView>& into, TraceRing::View* entries);

  // All gates stopped, and the registry lock held: nothing moves in any cache.
  class StoppedGates {
   public:
    // Gates for which `needed` is false are left alone.
    template <class Needed>
    StoppedGates(Impl& impl, const Needed& needed);
    explicit StoppedGates(Impl& impl)
        : StoppedGates(impl, [](const ThreadCache&) { return true; }) {}
    // They are stopped by stop_all(), which may be called with heap locks held: nobody waits for one
    // inside of a gate.
    struct Later {};
    StoppedGates(Impl& impl, Later /*later*/) : registry_(thread_registry::mutex()), impl_(&impl) {}
    void stop_all();
    ~StoppedGates() { reopen(); }
    StoppedGates(const StoppedGates&) = delete;
    StoppedGates& operator=(const StoppedGates&) = delete;
    [[nodiscard]] const std::vector<ThreadCache*>& caches() const noexcept { return stopped_; }

    // Opens the gates before the registry lock is given up.
    void reopen() noexcept;

   private:
    void stop();
    std::unique_lock<std::mutex> registry_;
    Impl* impl_ = nullptr;
    std::vector<ThreadCache*> stopped_;
  };

  const std::uint64_t id;                       // never 0, never reused
  std::atomic<std::uint32_t> free_bypasses{0};  // beside the id, which every free reads anyway
  Device& device;
  CaptureOrder* const capture_order;  // the device's, or null
  ProviderCudaMalloc provider;
  PageTable page_table;
  std::vector<std::unique_ptr<DeviceHeap>> heaps;  // by device
  const std::size_t thread_cache_limit_bytes;
  const std::chrono::milliseconds unmap_wait;
  const std::chrono::milliseconds collect_wait;

  // What the policy says, for who holds no heap lock.
  std::atomic<std::size_t> large_segment_bytes{sizes::kLargeSegment};
  std::atomic<bool> rounds_requests{false};  // to more than a multiple of 512 bytes

  std::vector<ThreadCache*> caches;  // guarded by the registry lock

  std::mutex history_mutex;  // taken first of all: one change of history's settings at a time
  std::atomic<bool> history_enabled{false};

  std::atomic<Block*> let_go_head{nullptr};  // pushed and taken whole: no pop, so no ABA
  std::atomic<Lender*> lender{nullptr};
  std::atomic<bool> used{false};

  // Callbacks in the order of registration; nodes are never removed, so the list is read without a
  // lock.
  struct Callback {
    std::function<bool()> call;
    std::atomic<Callback*> next{nullptr};
  };
  std::mutex callbacks_mutex;  // guards appending
  std::atomic<Callback*> first_callback{nullptr};
};

template <class Needed>
Allocator::Impl::StoppedGates::StoppedGates(Impl& impl, const Needed& needed)
    : registry_(thread_registry::mutex()) {
  for (ThreadCache* cache : impl.caches) {
    if (needed(*cache)) stopped_.push_back(cache);
  }
  stop();
}

}  // namespace limbo
