// The caching allocator: blocks out of segments, by stream, without synchronisation.
//
// This is the one header that other layers include. It knows nothing of processes (lending.h is
// what it asks of whoever does) and nothing of PyTorch.
//
// Policy: sizes are rounded up to 512 bytes; requests of up to 1 MiB are served from 2 MiB
// segments, larger ones below 10 MiB from 20 MiB segments, others from a segment of their own size
// rounded to 2 MiB. A block belongs to the stream it was allocated on and is reused on that stream
// without any synchronisation; one that record_stream marked waits for an event on each of those
// streams. Best fit, split, coalesce.
//
// All functions are thread-safe. The allocator is made once and never destroyed: frees during
// static destruction are accepted. Not usable in a fork child (the layers above check that).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "allocator/checkpoints.h"
#include "allocator/device/device.h"
#include "allocator/device/memory_users.h"
#include "allocator/lending.h"
#include "allocator/pool_id.h"
#include "allocator/stats.h"
#include "allocator/trace.h"

namespace limbo {

struct Block;    // block.h; outsiders only pass it back
class Provider;  // provider.h: what makes a private pool's memory, if the driver does not

// A block as outsiders see it.
struct BlockView {
  Block* block = nullptr;
  void* data = nullptr;
  std::size_t size_bytes = 0;       // rounded
  std::size_t requested_bytes = 0;  // as asked for
  StreamRef stream;                 // home: where it was allocated
  PoolId pool;                      // {0, 0}: the default one
  std::uint64_t piece_id = 0;       // never reused in this process
  void* piece_base = nullptr;
  std::size_t piece_size_bytes = 0;
  std::size_t offset_bytes = 0;  // of the block from piece_base
};

struct SegmentView {
  void* base = nullptr;
  std::size_t size_bytes = 0;
  std::size_t allocated_bytes = 0;
  std::size_t active_bytes = 0;
  std::size_t requested_bytes = 0;
  StreamRef stream;
  bool large = false;
  PoolId pool;
  // How many segments the thread that made it had made before.
  std::int32_t registration_counter = 0;
  // Of the call that took it from the driver. Where contexts are not kept in entries, a segment has
  // it only while a block of it is active.
  CallContext context;
  struct BlockState {
    std::size_t size_bytes = 0;
    std::size_t requested_bytes = 0;
    bool allocated = false;
    bool active = false;  // allocated, or waiting for an event or an unpin
    CallContext context;  // of its allocation, while it is active
  };
  std::vector<BlockState> blocks;  // in address order; they tile the segment
};

// Segments in the order of their addresses, and the history up to that moment, by device.
struct MemorySnapshot {
  std::vector<SegmentView> segments;
  std::vector<std::vector<TraceEntry>> traces;  // empty where they were not asked for
};

// What a failed allocation knows: thrown as OutOfMemory (an Error), turned into torch's own
// OutOfMemoryError by hooks/.
class OutOfMemory : public std::exception {
 public:
  OutOfMemory(int device, std::size_t requested_bytes, MemoryInfo info, DeviceStats stats,
              std::size_t limit_bytes, std::string holders, std::vector<MemoryUser> users);
  [[nodiscard]] const char* what() const noexcept override { return text_.c_str(); }

  int device;
  std::size_t requested_bytes;
  MemoryInfo info;
  DeviceStats stats;
  std::size_t limit_bytes;        // 0: none
  std::string holders;            // who holds lent memory; empty if nobody
  std::vector<MemoryUser> users;  // of the device; empty where the driver does not say
  // What the request comes to: rounded, and as a segment of its own. 0 for one that no device can
  // have (2^60 bytes and more).
  std::size_t size_bytes = 0;
  std::size_t segment_bytes = 0;

 private:
  std::string text_;
};

// How free memory is cut and kept; what c10's options of the same names say. The defaults are the
// native allocator's.
struct AllocationPolicy {
  // Free blocks of this size or more are not cut, and serve only requests that are as large. More
  // than large_segment_bytes.
  std::size_t max_split_size_bytes = ~std::size_t{0};
  // How much larger than a request of max_split_size_bytes or more the block that serves it may be.
  // At least large_segment_bytes.
  std::size_t max_non_split_rounding_bytes = std::size_t{20} << 20;
  // Before new memory is taken while more than this part of the limit (of the device's memory where
  // there is none) is reserved, unused large segments are returned, the longest unused first, until
  // it is not. From 0 (never) to below 1.
  double garbage_collection_threshold = 0;
  // The segments that blocks of more than 1 MiB and less than 10 MiB are cut from. A multiple of
  // 2 MiB of more than 10 MiB.
  std::size_t large_segment_bytes = std::size_t{20} << 20;
  // Requests are rounded up to the next border of this many equal parts between two powers of two,
  // so that sizes that differ little can be served by the same blocks. By size: the first is for
  // requests below 2 MiB, the next for those below 4 MiB, and so on. Powers of two; 0 and 1: to a
  // multiple of 512 bytes, as are requests of up to 512 bytes for each part.
  std::array<std::size_t, 16> roundup_power2_divisions{};
  // Whether what record_stream marked and was freed during a capture is reused in that capture, as
  // soon as its stream comes behind everything that the marked streams had captured by the free.
  bool reuse_in_capture = false;

  // What a request of so many bytes (at least 1, below 2^60) is rounded up to.
  [[nodiscard]] std::size_t block_size(std::size_t requested_bytes) const noexcept;
};

class Allocator {
 public:
  explicit Allocator(Device& device);
  ~Allocator();
  Allocator(const Allocator&) = delete;
  Allocator& operator=(const Allocator&) = delete;

  [[nodiscard]] Device& device() noexcept;

  // ---- blocks -----------------------------------------------------------------------------

  // Returns a block of at least size_bytes, 512-aligned; null for 0 (no driver call). Throws
  // OutOfMemory after the whole slow path has been tried, Error(kBadArgument) for a device that
  // does not exist and for cudaStreamPerThread, Error(kDeviceError) when the driver refuses for
  // another reason.
  [[nodiscard]] void* allocate(std::size_t size_bytes, StreamRef stream);

  // `data` as allocate returned it; null does nothing. Throws kDoubleFree, kInteriorFree or
  // kForeignFree, and the allocator stays whole.
  void free(void* data);

  // Freed, the block waits for the work that `stream` has queued by then. False when `data` is not
  // in a block of this allocator that is allocated, or freed and still pinned (nothing happens).
  // For a pinned block that was freed already, "by then" is its last unpin. Throws
  // Error(kBadArgument) as allocate does.
  bool record_stream(const void* data, StreamRef stream);

  // The allocated block that holds `data`, which may point into it; nothing if there is none.
  [[nodiscard]] std::optional<BlockView> find(const void* data);

  // ---- pins -------------------------------------------------------------------------------

  // Pins the allocated block that holds `data` (interior pointers allowed): freed, it waits in
  // limbo until its last unpin. Throws kNotLendable when there is no such block, or it is a private
  // pool's. Never calls back.
  [[nodiscard]] BlockView pin(const void* data);

  // Takes one pin more on a block that has one, also in limbo.
  void pin_again(Block* block);

  // Undoes one pin. The last one of a freed block makes it free memory. Never call it with a lock
  // held that a free-memory callback may want. Calls trackers, but waits for none that another thread
  // is in: what they hear of it is left to that one.
  void unpin(Block* block);

  // The blocks freed while pinned since the last call, each once, as a chain (next_let_go); null if
  // none. The chain holds a pin of its own on each: unpin every one when done. Lock-free,
  // allocates nothing, callable under the lender's lock.
  [[nodiscard]] Block* take_let_go() noexcept;
  [[nodiscard]] static Block* next_let_go(Block* block) noexcept;

  // A word of the lender's on every block, null in every new allocation. Guarded by the lender's
  // own lock, and touched only while the lender has a pin: it clears the word before its last
  // unpin of a block that is still allocated (the allocator clears it when the block is freed).
  [[nodiscard]] static void*& lender_note(Block* block) noexcept;

  // Once, before the first pin. Not owned.
  void set_lender(Lender* lender) noexcept;

  // ---- making room ------------------------------------------------------------------------

  // Called on a miss, after the lender's collect, in the order of registration, with no lock held;
  // true says that something may have been freed. Never removed.
  void add_free_memory_callback(std::function<bool()> callback);

  // Returns what is free to the driver; -1: of every device. Waits for the events of blocks that
  // record_stream marked. Pieces that another process maps are kept and flagged; private pools that
  // are used are kept, and everything on a device where allocations go to a private pool.
  void empty_cache(int device = -1);

  // The most that may be taken from the driver, in bytes; 0: no limit.
  void set_limit_bytes(int device, std::size_t limit_bytes);
  [[nodiscard]] std::size_t limit_bytes(int device) const;

  // For all devices, from the next miss on. Throws Error(kBadArgument) for a value out of range.
  void set_policy(const AllocationPolicy& policy);

  // ---- private pools ----------------------------------------------------------------------
  // A private pool keeps the memory of some allocations apart, for CUDA graphs and for
  // torch.cuda.MemPool. It exists by device and id, from its first use to the return of its last
  // segment. Uses are counted: retain_pool and begin_allocate_to_pool add one each, release_pool
  // takes one away. While there is one, all memory of the pool stays with it; afterwards what is
  // unused is returned by empty_cache and before out-of-memory. Blocks that are freed later are
  // still that pool's. Blocks of private pools cannot be lent (pin throws kNotLendable).
  //
  // All of these throw Error(kBadArgument) for a device that does not exist and for the id {0, 0},
  // and those that say so for a pool that does not exist.

  // One use more; makes the pool where there is none. `provider`: what makes its memory (null: what
  // makes the default pool's); it lives until its last piece is returned. Another one than the
  // pool has already: Error(kBadArgument).
  void retain_pool(int device, PoolId pool, std::shared_ptr<Provider> provider = nullptr);

  // One use less. Throws Error(kBadArgument) for a pool that does not exist or has no use left.
  void release_pool(int device, PoolId pool);

  // 0 for a pool that does not exist.
  [[nodiscard]] int pool_use_count(int device, PoolId pool) const;

  // From now on allocations on streams that `filter` accepts are served from the pool; of several
  // pools, from the one begun last. Adds a use (and makes the pool where there is none), which
  // release_pool must take away after the end. The filter is asked in the allocating thread, with
  // no lock held, at every allocation of the device.
  //
  // Who captures a graph into the pool names the stream whose capture it is, or will be: while that
  // is being captured no event is queried and no memory returned on the device, and a block freed
  // meanwhile that record_stream marked waits until then. Without a stream it is so until the
  // route's end.
  //
  // Throws Error(kBadArgument) where allocations go to this pool already.
  void begin_allocate_to_pool(int device, PoolId pool, std::function<bool(StreamHandle)> filter,
                              std::optional<StreamHandle> captured = std::nullopt);

  // Throws Error(kBadArgument) where no allocations go to this pool.
  void end_allocate_to_pool(int device, PoolId pool);

  // Requests outside of all private pools that find no room may be served from the pool's unused
  // memory (of their stream), before memory is returned. Throws for a pool that does not exist.
  void set_use_on_oom(int device, PoolId pool, bool use);

  // From now on every allocation of the pool has a segment of its own. Throws for a pool that does
  // not exist.
  void set_no_split(int device, PoolId pool);

  // The pool's allocated blocks. Throws for a pool that does not exist.
  [[nodiscard]] std::vector<void*> pool_live_allocations(int device, PoolId pool);

  // Returns the pool's unused segments, if it has no use left; waits for the events of its blocks.
  // Beside a capture into a pool of the device that is put off to its route's end. Nothing happens
  // for a pool that does not exist.
  void empty_cache(int device, PoolId pool);

  // How the pool is cut into blocks. Throws Error(kBadArgument) for a pool that does not exist or has
  // no use left.
  [[nodiscard]] std::shared_ptr<const Checkpoint> take_checkpoint(int device, PoolId pool);

  // Cuts the pool as it was at the checkpoint: its blocks that are allocated are freed, those that
  // were allocated then are again. Segments that the pool has got since stay with it, all free. The
  // caller answers for it that nobody uses what is freed. Throws Error(kBadArgument), before
  // anything has changed, for a pool that does not exist, has no use left, or no longer has the
  // checkpoint's segments, and where a block of it is lent or marked by record_stream.
  CheckpointDelta restore_checkpoint(const Checkpoint& checkpoint);

  // ---- numbers ----------------------------------------------------------------------------

  // Exact whenever no other thread is inside the allocator.
  [[nodiscard]] DeviceStats stats(int device);
  // Two of them, without stopping anybody: what other threads do meanwhile is in it or not.
  [[nodiscard]] MemoryTotals totals(int device) const;
  void reset_peak_stats(int device);
  void reset_accumulated_stats(int device);
  // Of one device, or (-1) of all; of one private pool, or ({0, 0}) of all pools. The history notes
  // that a snapshot was made, behind what it returns.
  [[nodiscard]] std::vector<SegmentView> snapshot(int device = -1, PoolId pool = {});
  [[nodiscard]] MemorySnapshot snapshot_with_traces(PoolId pool = {});

  // The largest free block of all pools, in bytes.
  [[nodiscard]] std::size_t largest_free_block_bytes(int device);

  // Whether any memory was ever taken from the driver.
  [[nodiscard]] bool used() const noexcept;

  // ---- history (trace.h) ------------------------------------------------------------------

  // For all devices, at once. While it is enabled no thread's cache is used: every call takes the
  // heap lock. Throws Error(kBadArgument) for contexts without a function that gathers them.
  void set_history(const HistorySettings& settings);
  [[nodiscard]] bool history_enabled() const noexcept;

  // Called with every entry from now on, on the thread that causes it or on one that is inside the
  // allocator at that moment, with no lock held; never removed; caches are not used any more. Of a
  // segment it hears before anybody can be handed memory of it, and before the driver gets it back:
  // what it throws then makes the allocation, or the return, fail with that and without effect.
  // What it throws otherwise is dropped. It may call the allocator, but not wait for another thread
  // that does, and not take locks that others hold when they call it.
  void add_trace_tracker(TraceTracker tracker);

  // For tests: throws Error(kInternal) with the first broken invariant (blocks tile segments, page
  // table, free lists, statistics equal sums over the snapshot, no cached block is allocated).
  void check_invariants();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace limbo
