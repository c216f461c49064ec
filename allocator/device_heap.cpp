#include "allocator/device_heap.h"

#include <atomic>
#include <bit>
#include <utility>

namespace limbo {
namespace {

std::uint64_t next_piece_id() noexcept {
  static std::atomic<std::uint64_t> last{0};
  return last.fetch_add(1, std::memory_order_relaxed) + 1;
}

// Segments that this thread has made.
thread_local constinit std::int32_t segments_made = 0;

bool is_part(const Block* block) noexcept {
  return block->previous != nullptr || block->next != nullptr;
}

// No block of its piece is out, and nobody is returning it already.
bool is_unused(const Segment& segment) noexcept {
  return segment.piece.blocks_out == 0 && segment.first->state() == BlockState::kFree;
}

}  // namespace

EventHandle EventPool::take(Device& device, int index) {
  {
    const std::lock_guard lock(mutex_);
    if (!events_.empty()) {
      const EventHandle event = events_.back();
      events_.pop_back();
      return event;
    }
  }
  {
    const std::lock_guard lock(mutex_);
    if (events_.capacity() <= made_) events_.reserve(2 * made_ + 8);
    ++made_;
  }
  try {
    return device.create_event(index);
  } catch (...) {
    const std::lock_guard lock(mutex_);
    --made_;
    throw;
  }
}

void EventPool::give(EventHandle event) noexcept {
  const std::lock_guard lock(mutex_);
  events_.push_back(event);
}

void EventPool::destroy_all(Device& device, int index) noexcept {
  for (const EventHandle event : events_) {
    try {
      device.destroy_event(index, event);
    } catch (...) {  // the allocator ends: nobody is left to tell
    }
  }
  events_.clear();
}

DeviceHeap::DeviceHeap(int device_index, PageTable& page_table, std::size_t depot_limit_bytes)
    : device(device_index),
      default_pool(std::make_shared<Pool>(PoolId{})),
      trace(*this, device_index, mutex, work_done),
      depot_room(depot_limit_bytes),
      page_table_(page_table) {}

DeviceHeap::~DeviceHeap() = default;

// All that a block will ever need of the C++ heap is made here, so that whatever becomes of it later
// cannot fail.
void DeviceHeap::reserve_nodes(std::size_t count) {
  while (unused_nodes_.count < count) {
    if (places_.capacity() <= nodes_.size()) places_.reserve(2 * nodes_.size() + 64);
    FreeList::Place place = FreeList::make_place();
    unused_nodes_.push(&nodes_.emplace_back());
    places_.push_back(std::move(place));
  }
}

Block* DeviceHeap::new_node() {
  reserve_nodes(1);
  return unused_nodes_.pop();
}

void DeviceHeap::drop_node(Block* block) noexcept {
  block->set_state(BlockState::kUnused);
  block->previous = block->next = nullptr;
  block->note = nullptr;
  unused_nodes_.push(block);
}

void DeviceHeap::insert_free(Block* block) noexcept {
  if (block->segment->large) {
    block->segment->pool->large.insert(block, std::move(places_.back()));
    places_.pop_back();
  } else {
    block->segment->pool->small.insert(block);
  }
  if (!is_part(block)) return;
  counters.add(kInactive, block->segment->large, 1);
  counters.add(kInactiveBytes, block->segment->large, block->size_bytes);
}

void DeviceHeap::remove_free(Block* block) noexcept {
  if (block->segment->large) {
    places_.push_back(block->segment->pool->large.erase(block));
  } else {
    block->segment->pool->small.erase(block);
  }
  if (!is_part(block)) return;
  counters.subtract(kInactive, block->segment->large, 1);
  counters.subtract(kInactiveBytes, block->segment->large, block->size_bytes);
}

// Cuts `block` (in no list) down to size_bytes; the rest becomes a free block behind it, of which
// `rest` is the node.
void DeviceHeap::split_off(Block* block, std::size_t size_bytes, Block* rest) noexcept {
  rest->segment = block->segment;
  rest->base.store(block->data() + size_bytes, std::memory_order_relaxed);
  rest->size_bytes = block->size_bytes - size_bytes;
  rest->previous = block;
  rest->next = block->next;
  if (rest->next != nullptr) rest->next->previous = rest;
  block->next = rest;
  block->size_bytes = size_bytes;
  rest->set_state(BlockState::kFree);
  page_table_.set(rest->data(), rest);
  insert_free(rest);
}

// Merges the free block behind `block` (both in no list) into it.
void DeviceHeap::absorb_next(Block* block) noexcept {
  Block* gone = block->next;
  page_table_.set(gone->data(), nullptr);
  block->size_bytes += gone->size_bytes;
  block->next = gone->next;
  if (block->next != nullptr) block->next->previous = block;
  drop_node(gone);
}

Block* DeviceHeap::find_fit(const Pool& pool, StreamHandle stream, std::size_t size_bytes) {
  ++searches;
  Block* block = sizes::is_large(size_bytes) ? pool.large.find_best(stream, size_bytes)
                                             : pool.small.find_best(stream, size_bytes);
  if (block == nullptr || block->size_bytes < policy.max_split_size_bytes) return block;
  // A block that is not to be cut.
  if (size_bytes < policy.max_split_size_bytes) return nullptr;
  return block->size_bytes - size_bytes < policy.max_non_split_rounding_bytes ? block : nullptr;
}

// Takes a free block out of its list, cut to size_bytes where that leaves a block.
void DeviceHeap::cut(Block* block, std::size_t size_bytes) {
  const bool splits = size_bytes < policy.max_split_size_bytes && !block->segment->pool->no_split &&
                      sizes::leaves_block(block->segment->large, block->size_bytes - size_bytes);
  Block* rest = splits ? new_node() : nullptr;  // while nothing has changed yet
  remove_free(block);
  if (splits) split_off(block, size_bytes, rest);
}

// What the heap wants to know when the block is freed again, as flags of its word.
std::uint64_t DeviceHeap::note(Block* block) noexcept {
  block->oversize = block->size_bytes >= policy.max_split_size_bytes;
  if (block->oversize) DeviceCounters::raise(counters.oversize_allocations);
  if (trace.active()) {
    block->context = TraceCall::context();
    record_block(TraceAction::kAlloc, *block, block->context);
  }
  return block->oversize || block->context != nullptr ? block_word::kNoted : 0;
}

void* DeviceHeap::hand_out(Block* block, std::size_t size_bytes, std::size_t requested_bytes) {
  cut(block, size_bytes);
  return hand_over(block, requested_bytes);
}

bool DeviceHeap::try_cut_for_cache(Block* block, std::size_t size_bytes) noexcept {
  try {
    cut(block, size_bytes);
  } catch (const std::bad_alloc&) {
    return false;
  }
  count_out(block);
  if (block->split) {
    counters.add(kInactive, block->segment->large, 1);
    counters.add(kInactiveBytes, block->segment->large, block->size_bytes);
  }
  block->set_state(BlockState::kCached);
  return true;
}

// A free block, in no list, is its segment's no more.
void DeviceHeap::count_out(Block* block) noexcept {
  block->split = is_part(block);
  Piece& piece = block->segment->piece_of(*block);
  ++piece.blocks_out;
  piece.kept_for_readers = false;  // asked anew when it is free again
}

// A free block, in no list, is allocated from now on.
void* DeviceHeap::hand_over(Block* block, std::size_t requested_bytes) noexcept {
  count_out(block);
  block->requested_bytes.store(requested_bytes, std::memory_order_relaxed);
  counters.add_handed_out(block->segment->large, block->size_bytes, requested_bytes);
  const std::uint64_t word = block->word.load(std::memory_order_relaxed);
  const std::uint64_t flags =
      note(block) | (block->segment->pool->is_default() ? 0 : block_word::kPrivate);
  block->word.store(block_word::next_allocated(word) | flags, std::memory_order_release);
  return block->data();
}

void DeviceHeap::give(Block* block, bool was_cached) noexcept {
  Segment& segment = *block->segment;
  if (was_cached && block->split) {
    counters.subtract(kInactive, segment.large, 1);
    counters.subtract(kInactiveBytes, segment.large, block->size_bytes);
  }
  --segment.piece_of(*block).blocks_out;
  block->set_state(BlockState::kFree);
  if (Block* next = block->next; next != nullptr && next->state() == BlockState::kFree) {
    remove_free(next);
    absorb_next(block);
  }
  if (Block* previous = block->previous;
      previous != nullptr && previous->state() == BlockState::kFree) {
    remove_free(previous);
    absorb_next(previous);
    block = previous;
  }
  block->free_since = searches;
  insert_free(block);
}

void DeviceHeap::end_allocated(Block* block) noexcept {
  counters.subtract_allocated(block->segment->large, block->size_bytes);
  if (std::exchange(block->oversize, false)) DeviceCounters::lower(counters.oversize_allocations);
  record_block(TraceAction::kFreeRequested, *block, TraceCall::context_of_free(block->context));
}

void DeviceHeap::end_active(Block* block) noexcept {
  counters.subtract_active(block->segment->large, block->size_bytes,
                           block->requested_bytes.load(std::memory_order_relaxed));
  record_block(TraceAction::kFreeCompleted, *block, TraceCall::context_of_free(block->context));
  block->context.reset();
  block->note = nullptr;
  give(block, false);
}

void DeviceHeap::give_all(ChainList& chains, ThreadCounters* own) noexcept {
  if (chains.empty()) return;
  const CountersChange change(counters, own);
  while (!chains.empty()) give(chains.pop(), true);
}

Segment& DeviceHeap::add_segment(Pool& pool, Provider& provider, void* base, std::size_t size_bytes,
                                 StreamRef stream, bool is_large) {
  if (!is_large) pool.small.prepare(stream.handle);
  auto made = std::make_unique<Segment>();
  Segment& segment = *made;
  segment.provider = &provider;
  segment.pool = pool.shared_from_this();
  segment.stream = stream;
  segment.large = is_large;
  segment.base = static_cast<std::byte*>(base);
  segment.size_bytes = size_bytes;
  segment.piece.id = next_piece_id();
  segment.piece.base = segment.base;
  segment.piece.size_bytes = size_bytes;
  Block* block = new_node();
  block->segment = &segment;
  block->base.store(segment.base, std::memory_order_relaxed);
  block->size_bytes = size_bytes;
  segment.first = block;
  auto entered = segments.end();
  try {
    entered = segments.emplace(segment.piece.id, std::move(made)).first;
    page_table_.add_segment(base, size_bytes, is_large, device);
  } catch (...) {
    drop_node(block);
    if (entered != segments.end()) segments.erase(entered);
    throw;
  }
  block->set_state(BlockState::kInTransit);
  page_table_.set(base, block);
  ++pool.segments;
  ++counters.num_device_alloc;
  segment.registration_counter = segments_made++;
  segment.oversize = size_bytes >= policy.max_split_size_bytes;
  count_in(segment);
  if (trace.active()) segment.context = TraceCall::context();
  record_segment(TraceAction::kSegmentAlloc, segment);
  return segment;
}

void DeviceHeap::list_segment(Segment& segment) noexcept {
  Block* block = segment.first;
  if (segment.passage == Passage::kComing) block->free_since = searches;
  segment.passage = Passage::kHere;
  insert_free(block);
  block->set_state(BlockState::kFree);
}

Segment* DeviceHeap::begin_return(std::uint64_t after, const Pool* only) {
  for (auto at = segments.upper_bound(after); at != segments.end(); ++at) {
    Segment& segment = *at->second;
    if (only != nullptr && segment.pool.get() != only) continue;
    if (is_unused(segment) && segment.pool->may_shrink()) return &take_out_of_lists(segment);
  }
  return nullptr;
}

Segment* DeviceHeap::begin_return_oldest() {
  Segment* oldest = nullptr;
  for (const auto& [piece_id, segment] : segments) {
    if (!segment->large || !segment->pool->is_default()) continue;
    if (segment->piece.kept_for_readers || !is_unused(*segment)) continue;
    if (oldest == nullptr || segment->first->free_since < oldest->first->free_since) {
      oldest = segment.get();
    }
  }
  return oldest == nullptr ? nullptr : &take_out_of_lists(*oldest);
}

Segment* DeviceHeap::begin_return_uncut(StreamHandle stream, std::size_t wanted_bytes) {
  Block* chosen = nullptr;
  for (Block* block : default_pool->large) {  // of one stream by size, the smallest first
    Segment& segment = *block->segment;
    if (segment.stream.handle != stream || block->size_bytes < policy.max_split_size_bytes)
      continue;
    if (segment.piece.kept_for_readers || !is_unused(segment)) continue;
    chosen = block;
    if (block->size_bytes >= wanted_bytes) break;
  }
  return chosen == nullptr ? nullptr : &take_out_of_lists(*chosen->segment);
}

Segment& DeviceHeap::take_out_of_lists(Segment& segment) noexcept {
  remove_free(segment.first);
  segment.first->set_state(BlockState::kInTransit);
  begin_work();
  return segment;
}

void DeviceHeap::count_in(const Segment& segment) noexcept {
  counters.add(kSegments, segment.large, 1);
  counters.add(kReserved, segment.large, segment.size_bytes);
  if (segment.oversize) DeviceCounters::raise(counters.oversize_segments);
}

void DeviceHeap::begin_leaving(Segment& segment) noexcept {
  const CountersChange change(counters);
  segment.passage = Passage::kGoing;
  counters.subtract(kSegments, segment.large, 1);
  counters.subtract(kReserved, segment.large, segment.size_bytes);
  if (segment.oversize) DeviceCounters::lower(counters.oversize_segments);
}

void DeviceHeap::cancel_leaving(Segment& segment) noexcept {
  const CountersChange change(counters);
  segment.passage = Passage::kHere;
  count_in(segment);
}

void DeviceHeap::hide_addresses(Segment& segment) noexcept {
  segment.hidden = page_table_.hide_segment(segment.base, segment.size_bytes);
}

void DeviceHeap::show_addresses(Segment& segment) noexcept {
  page_table_.show_segment(segment.base, std::exchange(segment.hidden, nullptr));
  page_table_.set(segment.base, segment.first);
}

std::unique_ptr<Segment> DeviceHeap::finish_return(Segment& segment) noexcept {
  ++counters.num_device_free;
  reserved_bytes -= segment.size_bytes;
  page_table_.give_back(std::exchange(segment.hidden, nullptr));
  drop_node(segment.first);
  const auto at = segments.find(segment.piece.id);
  std::unique_ptr<Segment> gone = std::move(at->second);
  segments.erase(at);
  --gone->pool->segments;
  forget_if_over(*gone->pool);
  return gone;
}

const CallContext& DeviceHeap::context_of(TraceAction action, const Segment& segment) noexcept {
  const CallContext& of_call = TraceCall::context();
  const bool goes = action == TraceAction::kSegmentFree;
  return goes && of_call == nullptr ? segment.context : of_call;
}

void DeviceHeap::record_block(TraceAction action, const Block& block,
                              const CallContext& context) noexcept {
  const Segment& segment = *block.segment;
  trace.record(action, std::bit_cast<std::uintptr_t>(block.data()),
               block.requested_bytes.load(std::memory_order_relaxed), segment.stream.handle,
               segment.pool->id, context);
}

void DeviceHeap::record_segment(TraceAction action, const Segment& segment) noexcept {
  trace.record(action, std::bit_cast<std::uintptr_t>(segment.base), segment.size_bytes,
               segment.stream.handle, segment.pool->id, context_of(action, segment));
}

bool DeviceHeap::idle() const noexcept {
  return works_ == trace.works_waiting_for_this_thread() + Inside<DeviceHeap>::times(*this);
}

void DeviceHeap::end_work() noexcept {
  --works_;
  ++works_done_;
  for (OthersWork* one = OthersWork::innermost_; one != nullptr; one = one->outer_) {
    if (&one->at_ == this) ++one->own_;
  }
  work_done.notify_all();
}

}  // namespace limbo
