// record_stream: a freed block waits for an event on each stream that was named.
//
// Beside a capture into a pool no event is recorded, asked or waited for. An event of a captured
// stream would tell nothing, and a query can end a capture.
//
// Events are recorded at the free, asked on misses, and waited for only before memory goes back to
// the driver or out-of-memory is reported. An event that cannot be recorded yet (its stream is
// being captured, somebody begins a capture just now, or the driver refuses) is tried again at the
// next miss; until then the block stays out of use.
#include <algorithm>
#include <new>
#include <thread>

#include "allocator/allocator_impl.h"
#include "allocator/capture_gate.h"
#include "allocator/error.h"

namespace limbo {

bool Allocator::record_stream(const void* data, StreamRef stream) {
  static_cast<void>(impl_->heap(stream.device));
  Impl::require_named(stream);
  const auto [at, lock] = impl_->lock_heap_at(data);
  Block* block = at == nullptr ? nullptr : impl_->page_table.holding(data);
  if (block == nullptr) return false;
  const BlockState state = block->state();
  if (state != BlockState::kAllocated && state != BlockState::kLimbo) return false;
  if (stream == block->segment->stream) return true;
  if (block->users != nullptr &&
      std::any_of(block->users->begin(), block->users->end(),
                  [&](const Wait& named) { return named.stream == stream; })) {
    return true;
  }
  WaitList made(1);
  made.front().stream = stream;
  made.front().block = block;
  if (block->users == nullptr) block->users = std::make_unique<WaitList>();
  block->users->splice(block->users->end(), made);
  block->word.fetch_or(block_word::kRecorded, std::memory_order_acq_rel);
  return true;
}

Allocator::Impl::PlannedWaits Allocator::Impl::plan_waits(DeviceHeap& at, Block* block) noexcept {
  if (block->users == nullptr) return {};
  const PlannedWaits planned{block->users->begin(), block->users->size()};
  for (Wait& wait : *block->users) {
    wait.number = ++at.last_wait;
    at.take_in_hand(wait);
  }
  block->waits += static_cast<unsigned>(planned.count);
  at.unrecorded.splice(at.unrecorded.end(), *block->users);
  at.note_waits();
  block->users.reset();
  at.begin_work();  // ends in begin_waits
  return planned;
}

EventHandle Allocator::Impl::try_record(StreamRef stream) noexcept {
  EventPool& pool = heaps[static_cast<std::size_t>(stream.device)]->events;
  EventHandle event = nullptr;
  const StreamQuestion question(device);
  if (!question) return nullptr;
  try {
    if (device.is_capturing(stream)) return nullptr;
    event = pool.take(device, stream.device);
    device.record_event(stream, event);
    // Where a capture has begun just now, the event tells nothing.
    if (!device.is_capturing(stream)) return event;
    pool.give(event);
    return nullptr;
  } catch (...) {  // tried again at the next miss
    if (event != nullptr) pool.give(event);
    return nullptr;
  }
}

void Allocator::Impl::put_down(DeviceHeap& at, WaitList::iterator unrecorded,
                               EventHandle event) noexcept {
  unrecorded->in_hand = 0;
  if (event == nullptr) return;
  const StreamRef stream = unrecorded->stream;
  try {
    WaitList& queue = at.waits[{stream.device, stream.handle}];
    unrecorded->event = event;
    queue.splice(queue.end(), at.unrecorded, unrecorded);
  } catch (const std::bad_alloc&) {  // tried again at the next miss
    heaps[static_cast<std::size_t>(stream.device)]->events.give(event);
  }
}

void Allocator::Impl::begin_waits(DeviceHeap& at, const PlannedWaits& planned) noexcept {
  if (planned.count == 0) return;
  WaitList::iterator one = planned.first;
  const bool beside_capture = capturing(at);
  const bool by_order = beside_capture && capture_order != nullptr && [&] {
    const std::lock_guard policy_lock(at.mutex);
    return at.policy.reuse_in_capture && !one->block->segment->pool->is_default();
  }();
  for (std::size_t left = planned.count; left > 0; --left) {
    EventHandle event = beside_capture ? nullptr : try_record(one->stream);
    std::shared_ptr<const CapturePoint> point;
    if (by_order) point = capture_order->captured_so_far(one->stream);
    const std::lock_guard lock(at.mutex);
    const WaitList::iterator next = std::next(one);
    one->point = std::move(point);
    put_down(at, one, event);
    one = next;
    if (left == 1) at.end_work();
  }
}

// Each that nobody tries at the moment is tried once. Those that come meanwhile are left: other
// threads may go on freeing.
void Allocator::Impl::retry_unrecorded(DeviceHeap& at) {
  std::unique_lock lock(at.mutex);
  const std::uint64_t youngest = at.last_wait;
  for (auto one = at.unrecorded.begin(); one != at.unrecorded.end();) {
    if (one->in_hand != 0 || one->number > youngest) {
      ++one;
      continue;
    }
    at.take_in_hand(*one);
    at.begin_work();
    lock.unlock();
    EventHandle event = try_record(one->stream);
    lock.lock();
    const auto next = std::next(one);
    put_down(at, one, event);
    at.end_work();
    one = next;
  }
}

void Allocator::Impl::reuse_in_capture(DeviceHeap& at, const Request& request) {
  std::vector<WaitList::iterator> looked_at;
  std::vector<std::shared_ptr<const CapturePoint>> points;
  DeviceHeap::Work work(at);
  {
    const std::lock_guard lock(at.mutex);
    for (auto one = at.unrecorded.begin(); one != at.unrecorded.end(); ++one) {
      const Segment& segment = *one->block->segment;
      if (one->in_hand != 0 || one->point == nullptr || segment.pool.get() != request.pool ||
          segment.stream != request.stream) {
        continue;
      }
      looked_at.push_back(one);
      points.push_back(one->point);
    }
    if (looked_at.empty()) return;
    for (const auto& one : looked_at) at.take_in_hand(*one);
    work.begin();
  }
  std::vector<bool> done;
  try {
    done = capture_order->come_before(points, request.stream);
  } catch (...) {  // it cannot be told: they wait for the end of the capture
  }
  WaitList over;  // destroyed behind the lock
  const std::lock_guard lock(at.mutex);
  const CountersChange change(at.counters);
  for (std::size_t index = 0; index < looked_at.size(); ++index) {
    looked_at[index]->in_hand = 0;
    if (index >= done.size() || !done[index]) continue;
    over.splice(over.end(), at.unrecorded, looked_at[index]);
  }
  at.note_waits();
  for (const Wait& wait : over) {
    if (--wait.block->waits == 0 && wait.block->state() == BlockState::kWaiting) {
      at.end_active(wait.block);
    }
  }
  work.end();
}

// Looks at one stream's events, in order, up to the first that has not happened; at none of a wait
// that is younger than `youngest`, for other threads may go on freeing. The one that is being asked
// is in hand, and stays the first: where another thread has it in hand, that one goes on.
void Allocator::Impl::complete_queue(DeviceHeap& at, const DeviceHeap::StreamKey& key,
                                     std::uint64_t youngest) {
  EventPool& pool = heaps[static_cast<std::size_t>(key.first)]->events;
  while (true) {
    DeviceHeap::Work work(at);
    EventHandle event = nullptr;
    WaitList::iterator first;
    {
      const std::lock_guard lock(at.mutex);
      const auto queue = at.waits.find(key);
      if (queue == at.waits.end()) return;
      first = queue->second.begin();
      if (first->in_hand != 0 || first->number > youngest) return;
      at.take_in_hand(*first);
      event = first->event;
      work.begin();
    }
    bool happened = false;
    try {
      happened = device.query_event(key.first, event);
    } catch (...) {
      const std::lock_guard lock(at.mutex);
      first->in_hand = 0;
      throw;
    }
    WaitList over;  // destroyed behind the lock
    const std::lock_guard lock(at.mutex);
    if (!happened) {
      first->in_hand = 0;
      work.end();
      return;
    }
    pool.give(event);
    Block* block = first->block;
    const auto queue = at.waits.find(key);
    over.splice(over.end(), queue->second, first);
    if (queue->second.empty()) at.waits.erase(queue);
    at.note_waits();
    if (--block->waits == 0 && block->state() == BlockState::kWaiting) {
      const CountersChange change(at.counters);
      at.end_active(block);
    }
    work.end();
  }
}

void Allocator::Impl::complete_events(DeviceHeap& at) {
  if (!at.anything_waits() || capturing(at)) return;
  retry_unrecorded(at);
  std::vector<DeviceHeap::StreamKey> keys;
  std::uint64_t youngest = 0;
  {
    const std::lock_guard lock(at.mutex);
    youngest = at.last_wait;
    for (const auto& [key, queue] : at.waits) keys.push_back(key);
  }
  for (const DeviceHeap::StreamKey& key : keys) complete_queue(at, key, youngest);
}

// Waits until everything that has been freed by now is over; also what other threads are recording
// or asking. What is freed meanwhile is not waited for, nor are blocks whose event cannot be
// recorded before a capture ends.
void Allocator::Impl::wait_for_events(DeviceHeap& at, const Pool* only, Sync sync) {
  if (capturing(at)) return;
  // While a capture begins no event is recorded, and what has none would be given up below.
  { const StreamQuestion settled(device, StreamQuestion::Patient{}); }
  std::uint64_t youngest = 0;
  {
    const std::lock_guard lock(at.mutex);
    if (sync == Sync::kCounted) ++at.counters.num_sync_all_streams;
    youngest = at.last_wait;
  }
  const auto counts = [&](const Wait& wait) {
    return wait.number <= youngest && (only == nullptr || wait.block->segment->pool.get() == only);
  };
  std::uint64_t last_hand = 0;  // once each that was in no hand has been tried
  const auto waited_for = [&] {
    const std::lock_guard lock(at.mutex);
    if (last_hand == 0) last_hand = at.last_hand;
    for (const Wait& wait : at.unrecorded) {
      if (wait.in_hand != 0 && wait.in_hand <= last_hand && counts(wait)) return true;
    }
    return std::any_of(at.waits.begin(), at.waits.end(), [&](const auto& entry) {
      return std::any_of(entry.second.begin(), entry.second.end(), counts);
    });
  };
  std::chrono::microseconds pause(10);
  while (!capturing(at)) {
    complete_events(at);
    if (!waited_for()) return;
    std::this_thread::sleep_for(pause);
    pause = std::min(pause * 2, std::chrono::microseconds(1000));
  }
}

}  // namespace limbo
