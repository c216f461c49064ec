// One device's segments, free lists, numbers and waiting blocks: what a miss works on.
//
// `mutex` (the heap lock) guards everything here that says nothing else. No driver call, no
// callback and no wait is made under it. Functions that end in "caller holds the heap lock" assume
// it; the data are public to the allocator's own files and to nobody else.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "allocator/allocator.h"
#include "allocator/block.h"
#include "allocator/checkpoints.h"
#include "allocator/depot.h"
#include "allocator/device/capture_order.h"
#include "allocator/free_list.h"
#include "allocator/heap_mutex.h"
#include "allocator/inside.h"
#include "allocator/page_table.h"
#include "allocator/pools.h"
#include "allocator/segment.h"
#include "allocator/stats_counters.h"
#include "allocator/trace.h"

namespace limbo {

// Events of one device, for reuse.
class EventPool {
 public:
  // An event of the pool or a new one. Throws Error(kDeviceError).
  [[nodiscard]] EventHandle take(Device& device, int index);
  void give(EventHandle event) noexcept;
  void destroy_all(Device& device, int index) noexcept;

 private:
  std::mutex mutex_;                 // guards events_; a leaf, no driver call under it
  std::vector<EventHandle> events_;  // has room for all that were made
  std::size_t made_ = 0;
};

class DeviceHeap {
 public:
  DeviceHeap(int device_index, PageTable& page_table, std::size_t depot_limit_bytes);
  ~DeviceHeap();
  DeviceHeap(const DeviceHeap&) = delete;
  DeviceHeap& operator=(const DeviceHeap&) = delete;

  const int device;

 private:
  // Read by every miss before it has the lock, and seldom written: on lines without the rest.
  std::atomic<std::size_t> routes_standing_{0};
  std::atomic<bool> anything_waits_{false};

 public:
  alignas(128) mutable HeapMutex mutex;  // who waits for it disturbs nobody who works

  // ---- free memory: caller holds the heap lock ----

  // The pool's best fit that the policy allows; null if there is none. `size_bytes` is rounded. It
  // stays in its list.
  [[nodiscard]] Block* find_fit(const Pool& pool, StreamHandle stream, std::size_t size_bytes);

  // Hands out a free block that is large enough, split where that leaves a block. Throws
  // std::bad_alloc, and then the block is free as before.
  [[nodiscard]] void* hand_out(Block* block, std::size_t size_bytes, std::size_t requested_bytes);

  // Cuts a free block for a thread's cache, in whose hands it is from now on. False: there is no host
  // memory for the rest, and nothing has happened.
  [[nodiscard]] bool try_cut_for_cache(Block* block, std::size_t size_bytes) noexcept;

  // Makes a block free memory and merges it with its neighbours. `was_cached`: it was counted as
  // inactive. The caller has taken it out of the active numbers.
  void give(Block* block, bool was_cached) noexcept;

  // The block, whose word says so already, is no longer its owner's.
  void end_allocated(Block* block) noexcept;

  // The block is no longer active: nobody pins it and no event is waited for.
  void end_active(Block* block) noexcept;

  // Gives cached blocks, all of this device, in the thread that `own` (which may be null) counts for.
  void give_all(ChainList& chains, ThreadCounters* own) noexcept;

  // Enters new memory as one block of the pool, which is in transit until list_segment. Throws
  // std::bad_alloc; then nothing was entered.
  Segment& add_segment(Pool& pool, Provider& provider, void* base, std::size_t size_bytes,
                       StreamRef stream, bool large);
  void list_segment(Segment& segment) noexcept;  // it is free memory; also after begin_return

  // Returning a piece, in steps (see pieces.cpp).
  // The first piece after `after` with no block out, of a pool that may shrink (of this one, where
  // `only` names one); null if there is none. It is out of the free lists afterwards, and a work has
  // begun, which the caller must end.
  [[nodiscard]] Segment* begin_return(std::uint64_t after, const Pool* only = nullptr);
  // The default pool's large piece that has been free for longest, among those not kept for readers.
  [[nodiscard]] Segment* begin_return_oldest();
  // The default pool's piece of the stream that is unused and is not to be cut: the smallest of at
  // least `wanted_bytes`, else the largest. Null if there is none.
  [[nodiscard]] Segment* begin_return_uncut(StreamHandle stream, std::size_t wanted_bytes);
  void begin_leaving(Segment& segment) noexcept;   // out of snapshots and statistics
  void cancel_leaving(Segment& segment) noexcept;  // in them again
  void hide_addresses(Segment& segment) noexcept;  // lookups no longer find it
  void show_addresses(Segment& segment) noexcept;  // they do again
  // The driver has it. Destroy the result with no lock held: it may be the last that holds its pool.
  [[nodiscard]] std::unique_ptr<Segment> finish_return(Segment& segment) noexcept;

  // ---- history: caller holds the heap lock ----
  void record_block(TraceAction action, const Block& block, const CallContext& context) noexcept;
  void record_segment(TraceAction action, const Segment& segment) noexcept;
  // Of the calling thread's call; where that has none, a segment that goes has the one with which it
  // came.
  [[nodiscard]] static const CallContext& context_of(TraceAction action,
                                                     const Segment& segment) noexcept;

  // ---- private pools: caller holds the heap lock ----
  // Null if there is none of this id.
  [[nodiscard]] std::shared_ptr<Pool> find_pool(PoolId id) const;
  // The pool with one use more, made if there is none.
  std::shared_ptr<Pool> use_pool(PoolId id, const std::shared_ptr<Provider>& provider);
  // Forgets the pool's id if it has neither a use nor a segment. `pool` must live on until the lock
  // is given up.
  void forget_if_over(const Pool& pool) noexcept;
  // A block for the request out of the pools that serve in need; null if none has one.
  [[nodiscard]] Block* find_fit_in_need(StreamHandle stream, std::size_t size_bytes);

  // Going back to a checkpoint (checkpoints.cpp): first every allocated block of each of the pool's
  // segments becomes free memory, then a segment, all of it free, is cut as the layout says. What is
  // freed and allocated is added to the lists, which have room for it; so have the nodes, by
  // reserve_nodes.
  void free_all(Segment& segment, std::vector<void*>& freed) noexcept;
  void lay_out(Segment& segment, const Checkpoint::SegmentLayout& layout,
               std::vector<void*>& allocated) noexcept;
  void reserve_nodes(std::size_t count);  // unused ones; throws std::bad_alloc

  // Whether any route stands. May be read without the lock.
  [[nodiscard]] bool routed() const noexcept {
    return routes_standing_.load(std::memory_order_relaxed) != 0;
  }
  void set_routes(std::shared_ptr<const Routes> now) noexcept {
    routes_standing_.store(now->size(), std::memory_order_relaxed);
    routes.swap(now);
  }

  // ---- work in progress: caller holds the heap lock ----
  // Somebody holds memory of this device that is in no list (a driver call, an event that is being
  // looked at). Whoever is about to report out-of-memory waits for such work first.
  void begin_work() noexcept { ++works_; }
  void end_work() noexcept;
  // Whether the calling thread need not wait for any: its own (a tracker or a pool's provider, which
  // is called in the midst of it, may allocate) is none to wait for, nor is that of a thread that
  // waits until this one comes out of its tracker.
  [[nodiscard]] bool idle() const noexcept;
  // One work, which ends with the object at the latest.
  class Work {
   public:
    enum class Begun : std::uint8_t { kNotYet, kAlready };
    explicit Work(DeviceHeap& at, Begun begun = Begun::kNotYet) noexcept : at_(at) {
      if (begun == Begun::kAlready) own_.emplace(at);
    }
    ~Work() {  // without the lock
      if (!own_) return;
      const std::lock_guard lock(at_.mutex);
      at_.end_work();
    }
    Work(const Work&) = delete;
    Work& operator=(const Work&) = delete;
    void begin() noexcept {
      at_.begin_work();
      own_.emplace(at_);
    }
    void end() noexcept {
      own_.reset();
      at_.end_work();
    }

   private:
    DeviceHeap& at_;
    std::optional<Inside<DeviceHeap>> own_;  // while it is under way
  };
  // Sees whether others' work of this device ends while it lives, which is on the stack: what its
  // thread ends itself does not count, here or on other devices. Made and asked under the lock.
  class OthersWork {
   public:
    explicit OthersWork(const DeviceHeap& at) noexcept
        : at_(at), before_(at.works_done_), outer_(innermost_) {
      innermost_ = this;
    }
    ~OthersWork() { innermost_ = outer_; }
    OthersWork(const OthersWork&) = delete;
    OthersWork& operator=(const OthersWork&) = delete;

    [[nodiscard]] bool has_ended() const noexcept { return at_.works_done_ - own_ != before_; }

   private:
    friend class DeviceHeap;
    static inline thread_local constinit OthersWork* innermost_ = nullptr;

    const DeviceHeap& at_;
    const std::uint64_t before_;
    std::uint64_t own_ = 0;
    OthersWork* const outer_;
  };
  std::condition_variable_any work_done;      // idle() may have changed
  std::condition_variable_any filters_asked;  // some Route::asked is lower

  // ---- data, guarded by the heap lock ----
  alignas(128) std::map<std::uint64_t, std::unique_ptr<Segment>> segments;  // by piece id
  const std::shared_ptr<Pool> default_pool;
  std::map<PoolId, std::shared_ptr<Pool>> pools;  // private ones that are used or have segments
  std::shared_ptr<const Routes> routes = std::make_shared<const Routes>();  // never null
  DeviceCounters counters;
  Trace trace;
  std::map<StreamHandle, std::unique_ptr<StreamDepot>> depots;  // never erased
  AllocationPolicy policy;
  std::uint64_t searches = 0;      // find_fit calls: the heap's clock
  std::size_t limit_bytes = 0;     // 0: none
  std::size_t reserved_bytes = 0;  // taken from the driver, and being taken
  // Of it, what small requests have taken since caches were last emptied for one.
  std::size_t grown_unswept_bytes = 0;

  // Blocks that wait for events, by stream, in the order of the events. No queue is empty.
  using StreamKey = std::pair<int, StreamHandle>;
  std::map<StreamKey, WaitList> waits;
  // Those whose event is not recorded: it is being recorded, or could not be yet (the stream was
  // capturing, or the driver refused).
  WaitList unrecorded;
  std::uint64_t last_wait = 0;  // Wait::number of the youngest
  std::uint64_t last_hand = 0;  // Wait::in_hand of who took one last

  void take_in_hand(Wait& wait) noexcept { wait.in_hand = ++last_hand; }

  // Whether any block waits. May be read without the lock.
  [[nodiscard]] bool anything_waits() const noexcept {
    return anything_waits_.load(std::memory_order_relaxed);
  }
  // After every change of what is in the lists.
  void note_waits() noexcept {
    anything_waits_.store(!waits.empty() || !unrecorded.empty(), std::memory_order_relaxed);
  }

  // ---- without the lock ----
  EventPool events;  // of this device's streams
  DepotRoom depot_room;

 private:
  void cut(Block* block, std::size_t size_bytes);
  void count_out(Block* block) noexcept;
  void* hand_over(Block* block, std::size_t requested_bytes) noexcept;
  [[nodiscard]] std::uint64_t note(Block* block) noexcept;
  void count_in(const Segment& segment) noexcept;
  Segment& take_out_of_lists(Segment& segment) noexcept;
  [[nodiscard]] Block* new_node();
  void drop_node(Block* block) noexcept;
  void insert_free(Block* block) noexcept;
  void remove_free(Block* block) noexcept;
  void split_off(Block* block, std::size_t size_bytes, Block* rest) noexcept;
  void absorb_next(Block* block) noexcept;

  PageTable& page_table_;
  std::deque<Block> nodes_;
  Chain unused_nodes_;
  std::vector<FreeList::Place> places_;  // one for each node whose block is in no large list
  std::size_t works_ = 0;
  std::uint64_t works_done_ = 0;  // that have ended so far
};

}  // namespace limbo
