// Pieces on their way: new ones, and memory back to the driver, piece by piece.
//
// A piece goes back when none of its blocks is out and the lender says that nobody maps it. While
// it is asked and returned its block is in transit, in no free list; a thread that finds nothing
// meanwhile waits for the outcome before it reports out-of-memory (DeviceHeap::begin_work). So it is
// with a new piece, until the trackers have heard of it.
//
// Whoever takes a snapshot and is told of segments from then on (a network card's library does, to
// register them) must miss none and have none that is gone. So a segment comes into snapshots before
// the trackers hear that it has come, and leaves them before they hear that it goes.
#include <bit>

#include "allocator/allocator_impl.h"
#include "allocator/error.h"

namespace limbo {

void Allocator::Impl::tell_of_piece(DeviceHeap& at, TraceAction action, const Segment& segment,
                                    const std::function<void()>& take_back) {
  at.trace.tell_now(action, std::bit_cast<std::uintptr_t>(segment.base), segment.size_bytes,
                    segment.stream.handle, segment.pool->id,
                    DeviceHeap::context_of(action, segment), take_back);
}

void Allocator::Impl::begin_leaving(DeviceHeap& at, Segment& segment) noexcept {
  const std::lock_guard lock(at.mutex);
  at.begin_leaving(segment);
}

void Allocator::Impl::cancel_leaving(DeviceHeap& at, Segment& segment) noexcept {
  const std::lock_guard lock(at.mutex);
  at.cancel_leaving(segment);
}

// The segment was entered, and nobody has a part of it. What the trackers refuse goes back to its
// maker.
void Allocator::Impl::announce_piece(DeviceHeap& at, Segment& segment) {
  try {
    tell_of_piece(at, TraceAction::kSegmentAlloc, segment, [&] { begin_leaving(at, segment); });
  } catch (...) {
    drop_piece(at, segment);
    throw;
  }
}

// The trackers have refused the segment.
void Allocator::Impl::drop_piece(DeviceHeap& at, Segment& segment) noexcept {
  std::unique_ptr<Segment> gone;  // destroyed behind the lock
  try {
    give_back(at, segment);
    const std::lock_guard lock(at.mutex);
    gone = at.finish_return(segment);
  } catch (...) {  // the trackers' error is the one to report; the memory stays
    const std::lock_guard lock(at.mutex);
    const CountersChange change(at.counters);
    at.list_segment(segment);
  }
}

// The trackers know that it goes. Where its maker does not take it, they hear that it is there.
void Allocator::Impl::give_back(DeviceHeap& at, Segment& segment) {
  {
    // Before the driver has the addresses: another thread may be given them at once.
    const std::lock_guard lock(at.mutex);
    at.record_segment(TraceAction::kSegmentFree, segment);
    at.hide_addresses(segment);
  }
  try {
    segment.provider->return_piece(at.device, segment.base, segment.size_bytes);
  } catch (...) {
    {
      const std::lock_guard lock(at.mutex);
      at.show_addresses(segment);
      at.cancel_leaving(segment);
      at.record_segment(TraceAction::kSegmentAlloc, segment);
    }
    try {
      tell_of_piece(at, TraceAction::kSegmentAlloc, segment, [] {});
    } catch (...) {  // the maker's error is the one to report
    }
    throw;
  }
}

// The segment's return has begun. True when it has gone back.
bool Allocator::Impl::return_piece(DeviceHeap& at, Segment& segment) {
  const std::uint64_t piece_id = segment.piece.id;
  Lender* const asked = lender.load(std::memory_order_acquire);
  DeviceHeap::Work work(at, DeviceHeap::Work::Begun::kAlready);
  bool allowed = false;
  std::unique_ptr<Segment> gone;  // destroyed behind the lock
  try {
    allowed = asked == nullptr || asked->may_return_piece(piece_id);
    if (allowed) {
      begin_leaving(at, segment);
      tell_of_piece(at, TraceAction::kSegmentFree, segment, [&] { cancel_leaving(at, segment); });
      give_back(at, segment);
    }
  } catch (...) {
    const std::lock_guard lock(at.mutex);
    const CountersChange change(at.counters);
    at.list_segment(segment);
    work.end();
    throw;
  }
  {
    const std::lock_guard lock(at.mutex);
    if (allowed) {
      gone = at.finish_return(segment);
    } else {
      const CountersChange change(at.counters);
      segment.piece.kept_for_readers = true;
      at.list_segment(segment);
    }
    work.end();
  }
  if (allowed && asked != nullptr) asked->piece_returned(piece_id);
  return allowed;
}

// Returns every piece that may go; how many went. None does beside a capture.
std::size_t Allocator::Impl::return_pieces(DeviceHeap& at, const Pool* only) {
  std::size_t returned = 0;
  std::uint64_t last_id = 0;
  while (!capturing(at)) {
    Segment* segment = nullptr;
    {
      const std::lock_guard lock(at.mutex);
      const CountersChange change(at.counters);
      segment = at.begin_return(last_id, only);
    }
    if (segment == nullptr) break;
    last_id = segment->piece.id;
    if (return_piece(at, *segment)) ++returned;
  }
  return returned;
}

// Returns pieces of the request's stream that are not to be cut and so serve few requests, until
// there is room for it. True when any went.
bool Allocator::Impl::return_uncut(DeviceHeap& at, const Request& request) {
  std::size_t returned_bytes = 0;
  while (returned_bytes < request.size_bytes && !capturing(at)) {
    Segment* segment = nullptr;
    {
      const std::lock_guard lock(at.mutex);
      const CountersChange change(at.counters);
      segment = at.begin_return_uncut(request.stream.handle, request.size_bytes - returned_bytes);
    }
    if (segment == nullptr) break;
    const std::size_t size_bytes = segment->size_bytes;
    if (return_piece(at, *segment)) returned_bytes += size_bytes;
  }
  return returned_bytes != 0;
}

// Returns the longest unused large segments while more is reserved than the policy's threshold.
void Allocator::Impl::collect_garbage(DeviceHeap& at, const Request& request) {
  {
    const std::lock_guard lock(at.mutex);
    if (at.policy.garbage_collection_threshold <= 0) return;
  }
  if (in_capture(at, request)) return;
  const std::size_t capacity_bytes = device.memory_info(at.device).total_bytes;
  while (!capturing(at)) {
    Segment* segment = nullptr;
    {
      const std::lock_guard lock(at.mutex);
      const std::size_t allowed_bytes = at.limit_bytes != 0 ? at.limit_bytes : capacity_bytes;
      const double threshold_bytes =
          at.policy.garbage_collection_threshold * static_cast<double>(allowed_bytes);
      if (static_cast<double>(at.reserved_bytes) <= threshold_bytes) return;
      const CountersChange change(at.counters);
      segment = at.begin_return_oldest();
    }
    if (segment == nullptr) return;
    static_cast<void>(return_piece(at, *segment));
  }
}

bool Allocator::Impl::keeps_pieces_for_readers(DeviceHeap& at) {
  const std::lock_guard lock(at.mutex);
  for (const auto& [piece_id, segment] : at.segments) {
    if (segment->piece.kept_for_readers && segment->piece.blocks_out == 0) return true;
  }
  return false;
}

void Allocator::Impl::empty_cache(DeviceHeap& at) {
  const TraceCall call(at.trace, ContextLevel::kAll);
  wait_for_events(at);
  reclaim_caches(at);
  static_cast<void>(return_pieces(at));
}

void Allocator::empty_cache(int device) {
  if (device >= 0) {
    impl_->empty_cache(impl_->heap(device));
    return;
  }
  for (const auto& at : impl_->heaps) impl_->empty_cache(*at);
}

}  // namespace limbo
