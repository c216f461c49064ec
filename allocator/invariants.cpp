// check_invariants: everything that must be true while nothing moves, for tests.
#include <map>
#include <set>
#include <sstream>

#include "allocator/allocator_impl.h"
#include "allocator/error.h"

namespace limbo {
namespace {

template <class... Parts>
[[noreturn]] void broken(const Parts&... parts) {
  std::ostringstream text;
  (text << ... << parts);
  throw Error(ErrorCode::kInternal, "Broken invariant: " + text.str() + ".");
}

std::size_t index_of(bool large) {
  return static_cast<std::size_t>(large ? SizeKind::kLarge : SizeKind::kSmall);
}

// What the statistics must say, summed over the segments.
struct Sums {
  std::array<std::int64_t, 3> blocks{}, bytes{}, active{}, active_bytes{}, inactive{},
      inactive_bytes{}, requested{}, segments{}, reserved{};
  std::int64_t limbo_blocks = 0;
  std::int64_t limbo_bytes = 0;
  std::int64_t oversize_blocks = 0;
  std::int64_t oversize_segments = 0;
};

void count(std::array<std::int64_t, 3>& sum, bool large, std::size_t by) {
  sum[0] += static_cast<std::int64_t>(by);
  sum[index_of(large)] += static_cast<std::int64_t>(by);
}

class Check {
 public:
  Check(const DeviceHeap& heap, const PageTable& page_table)
      : heap_(heap), page_table_(page_table) {}

  void segments() {
    for (const auto& [piece_id, segment] : heap_.segments) check_segment(*segment);
    std::size_t listed = 0;
    segments_of_.try_emplace(heap_.default_pool.get(), 0);
    for (const auto& [pool, count] : segments_of_) {
      listed += pool->small.size() + pool->large.size();
      if (pool->segments != count) {
        broken("a pool says it has ", pool->segments, " segments, there are ", count);
      }
    }
    if (listed != free_blocks_) {
      broken("free lists hold ", listed, " blocks, segments have ", free_blocks_, " free ones");
    }
  }

  void pools() const {
    for (const auto& [id, pool] : heap_.pools) {
      if (pool->id != id || id.is_default()) broken("a private pool is known by a wrong id");
      if (pool->uses < 0) broken("a pool has ", pool->uses, " uses");
      if (pool->uses == 0 && pool->segments == 0) broken("a pool that is over is still known");
      if (pool->segments != 0 && !segments_of_.contains(pool.get())) {
        broken("a pool says it has segments, there are none");
      }
    }
    if (heap_.routed() != !heap_.routes->empty()) broken("routes are not counted right");
    if (heap_.routed() && !heap_.counters.caches_bypassed()) broken("a route without a bypass");
  }

  // A block found in a thread's cache or in the depot.
  void cached(const Block* block, const char* where) {
    if (block->state() != BlockState::kCached) {
      broken("a block in ", where, " is in state ", static_cast<int>(block->state()));
    }
    if (!cached_seen_.insert(block).second) broken("a block is cached twice");
    if (!cached_.contains(block)) broken("a block in ", where, " is in no segment");
  }

  static void depot(const DepotRoom& room, std::size_t bytes) {
    if (room.held_bytes() != bytes || bytes > room.limit_bytes()) {
      broken("the depot holds ", bytes, " bytes, says ", room.held_bytes(), ", and has room for ",
             room.limit_bytes());
    }
  }

  void statistics(const DeviceStats& stats) const {
    compare("allocation", stats.allocation, sums_.blocks);
    compare("allocated_bytes", stats.allocated_bytes, sums_.bytes);
    compare("active", stats.active, sums_.active);
    compare("active_bytes", stats.active_bytes, sums_.active_bytes);
    compare("inactive_split", stats.inactive_split, sums_.inactive);
    compare("inactive_split_bytes", stats.inactive_split_bytes, sums_.inactive_bytes);
    compare("requested_bytes", stats.requested_bytes, sums_.requested);
    compare("segment", stats.segment, sums_.segments);
    compare("reserved_bytes", stats.reserved_bytes, sums_.reserved);
    if (stats.oversize_allocations.current != sums_.oversize_blocks ||
        stats.oversize_segments.current != sums_.oversize_segments) {
      broken("statistics say ", stats.oversize_allocations.current, " oversize blocks in ",
             stats.oversize_segments.current, " oversize segments, segments ",
             sums_.oversize_blocks, " in ", sums_.oversize_segments);
    }
    if (stats.limbo_blocks != sums_.limbo_blocks || stats.limbo_bytes != sums_.limbo_bytes) {
      broken("statistics say ", stats.limbo_blocks, " blocks in limbo, segments ",
             sums_.limbo_blocks);
    }
  }

 private:
  void check_segment(const Segment& segment) {
    ++segments_of_[segment.pool.get()];
    if (segment.passage != Passage::kGoing) {
      count(sums_.segments, segment.large, 1);
      count(sums_.reserved, segment.large, segment.size_bytes);
      if (segment.oversize) ++sums_.oversize_segments;
    }
    if (segment.passage != Passage::kHere && segment.first->state() != BlockState::kInTransit) {
      broken("a segment that is on its way has blocks in use");
    }
    const std::byte* expected = segment.base;
    const Block* previous = nullptr;
    std::size_t out = 0;
    for (const Block* block = segment.first; block != nullptr; block = block->next) {
      if (block->data() != expected) broken("blocks do not tile the segment");
      if (block->previous != previous) broken("a block's neighbours disagree");
      if (block->segment != &segment) broken("a block names another segment");
      if (block->size_bytes == 0 || block->size_bytes % sizes::kBlockUnit != 0) {
        broken("a block has ", block->size_bytes, " bytes");
      }
      const BlockState state = block->state();
      if (segment.hidden == nullptr && page_table_.starting_at(block->data()) != block) {
        broken("the page table does not know a block");
      }
      if (state == BlockState::kFree && previous != nullptr &&
          previous->state() == BlockState::kFree) {
        broken("two free neighbours were not merged");
      }
      if (state != BlockState::kFree && state != BlockState::kInTransit) ++out;
      check_block(*block, segment);
      expected = block->end();
      previous = block;
    }
    if (expected != segment.base + segment.size_bytes) broken("blocks do not fill the segment");
    if (out != segment.piece.blocks_out) {
      broken("a piece says ", segment.piece.blocks_out, " blocks are out, there are ", out);
    }
  }

  void check_block(const Block& block, const Segment& segment) {
    const std::uint64_t word = block.word.load(std::memory_order_acquire);
    const std::uint64_t pins = block_word::pins(word);
    const bool part = block.previous != nullptr || block.next != nullptr;
    const std::size_t requested = block.requested_bytes.load(std::memory_order_relaxed);
    switch (block_word::state(word)) {
      case BlockState::kFree: {
        if (!segment.pool->lists(&block)) broken("a free block is in no list");
        ++free_blocks_;
        break;
      }
      case BlockState::kInTransit:
        break;
      case BlockState::kCached:
        cached_.insert(&block);
        break;
      case BlockState::kLimbo:
        if (pins == 0) broken("a block in limbo has no pin");
        ++sums_.limbo_blocks;
        sums_.limbo_bytes += static_cast<std::int64_t>(block.size_bytes);
        break;
      case BlockState::kWaiting:
        if (block.waits == 0) broken("a waiting block waits for nothing");
        break;
      case BlockState::kAllocated:
        count(sums_.blocks, segment.large, 1);
        count(sums_.bytes, segment.large, block.size_bytes);
        break;
      case BlockState::kUnused:
        broken("a segment has an unused node");
    }
    const BlockState state = block_word::state(word);
    const bool of_private_pool = !segment.pool->is_default();
    if (((word & block_word::kPrivate) != 0) !=
        (of_private_pool && state == BlockState::kAllocated)) {
      broken("a block's word does not know what pool it is of");
    }
    if (of_private_pool && (pins != 0 || state == BlockState::kCached)) {
      broken("a block of a private pool is pinned or cached");
    }
    if (block.oversize && state != BlockState::kAllocated) broken("a freed block is oversize");
    if (block.oversize) ++sums_.oversize_blocks;
    const bool noted = block.oversize || block.context != nullptr;
    if (state == BlockState::kAllocated && noted && (word & block_word::kNoted) == 0) {
      broken("a block with notes could be freed into a cache");
    }
    if (pins != 0 && state != BlockState::kLimbo && state != BlockState::kAllocated) {
      broken("a free block is pinned");
    }
    if (state == BlockState::kFree || state == BlockState::kCached) {
      if (block.note != nullptr) broken("a free block has a lender's note");
      if (block.context != nullptr) broken("a free block keeps a context");
      if (block.waits != 0 || block.users != nullptr) broken("a free block waits for events");
      if (part) {
        count(sums_.inactive, segment.large, 1);
        count(sums_.inactive_bytes, segment.large, block.size_bytes);
      }
      if (state == BlockState::kCached && block.split != part)
        broken("a part is not marked as one");
    } else if (state != BlockState::kInTransit) {
      count(sums_.active, segment.large, 1);
      count(sums_.active_bytes, segment.large, block.size_bytes);
      count(sums_.requested, segment.large, requested);
      if (requested > block.size_bytes) broken("a block is smaller than what was asked for");
    }
  }

  static void compare(const char* name, const StatByKind& said,
                      const std::array<std::int64_t, 3>& counted) {
    for (std::size_t kind = 0; kind < counted.size(); ++kind) {
      const Stat& stat = said[kind];
      if (stat.current != counted[kind]) {
        broken("statistic ", name, "[", kind, "] says ", stat.current, ", the segments hold ",
               counted[kind]);
      }
      if (stat.peak < stat.current) {
        broken("statistic ", name, "[", kind, "] has a peak of ", stat.peak, " below ",
               stat.current);
      }
    }
  }

  const DeviceHeap& heap_;
  const PageTable& page_table_;
  Sums sums_;
  std::size_t free_blocks_ = 0;
  std::map<const Pool*, std::size_t> segments_of_;
  std::set<const Block*> cached_;
  std::set<const Block*> cached_seen_;
};

}  // namespace

void Allocator::check_invariants() {
  const Impl::StoppedGates stopped(*impl_);
  for (const auto& at : impl_->heaps) {
    const std::lock_guard lock(at->mutex);
    Check check(*at, impl_->page_table);
    check.segments();
    check.pools();
    for (const ThreadCache* cache : stopped.caches()) {
      cache->visit(at->device,
                   [&](const Block* block) { check.cached(block, "a thread's cache"); });
    }
    std::size_t depot_bytes = 0;
    for (const auto& [stream, depot] : at->depots) {
      depot->visit([&](const Block* block) {
        check.cached(block, "the depot");
        depot_bytes += block->size_bytes;
      });
    }
    Check::depot(at->depot_room, depot_bytes);
    check.statistics(impl_->read_stats(*at));
  }
}

}  // namespace limbo
