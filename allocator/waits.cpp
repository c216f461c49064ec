// record_stream: a freed block waits for an event on each stream that was named.
//
// While a route stands somebody may be capturing: no event is recorded, asked or waited for. An
// event of a captured stream would tell nothing, and a query can end a capture.
//
// Events are recorded at the free, asked on misses, and waited for only before memory goes back to
// the driver or out-of-memory is reported. An event that cannot be recorded yet (its stream is
// being captured, or the driver refuses) is tried again at the next miss; until then the block
// stays out of use.
#include <algorithm>
#include <thread>

#include "allocator/allocator_impl.h"
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
  if (block->users == nullptr) block->users = std::make_unique<std::vector<StreamRef>>();
  auto& users = *block->users;
  if (std::find(users.begin(), users.end(), stream) == users.end()) users.push_back(stream);
  block->word.fetch_or(block_word::kRecorded, std::memory_order_acq_rel);
  return true;
}

std::vector<StreamRef> Allocator::Impl::plan_waits(DeviceHeap& at, Block* block) {
  if (block->users == nullptr) return {};
  std::vector<StreamRef> streams = std::move(*block->users);
  block->users.reset();
  block->waits += static_cast<unsigned>(streams.size());
  at.begin_work();  // ends in begin_waits
  return streams;
}

EventHandle Allocator::Impl::try_record(StreamRef stream) noexcept {
  if (driver_is_gone.load()) return nullptr;
  EventPool& pool = heaps[static_cast<std::size_t>(stream.device)]->events;
  EventHandle event = nullptr;
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

void Allocator::Impl::begin_waits(DeviceHeap& at, Block* block,
                                  const std::vector<StreamRef>& streams) {
  if (streams.empty()) return;
  std::vector<EventHandle> events(streams.size(), nullptr);
  std::vector<std::shared_ptr<const CapturePoint>> points(streams.size());
  const bool routed = at.routed();
  const bool by_order = routed && capture_order != nullptr && [&] {
    const std::lock_guard policy_lock(at.mutex);
    return at.policy.reuse_in_capture && !block->segment->pool->is_default();
  }();
  for (std::size_t index = 0; index < streams.size(); ++index) {
    if (!routed) events[index] = try_record(streams[index]);
    if (by_order) points[index] = capture_order->captured_so_far(streams[index]);
  }
  const std::lock_guard lock(at.mutex);
  for (std::size_t index = 0; index < streams.size(); ++index) {
    const StreamRef stream = streams[index];
    if (events[index] == nullptr) {
      at.unrecorded.push_back({stream, block, std::move(points[index])});
    } else {
      at.waits[{stream.device, stream.handle}].push_back({events[index], block});
    }
  }
  at.end_work();
}

void Allocator::Impl::retry_unrecorded(DeviceHeap& at) {
  std::vector<DeviceHeap::Unrecorded> tries;
  {
    const std::lock_guard lock(at.mutex);
    if (at.unrecorded.empty()) return;
    tries.swap(at.unrecorded);
    at.begin_work();
  }
  for (DeviceHeap::Unrecorded& one : tries) {
    EventHandle event = try_record(one.stream);
    const std::lock_guard lock(at.mutex);
    if (event == nullptr) {
      at.unrecorded.push_back(one);
    } else {
      at.waits[{one.stream.device, one.stream.handle}].push_back({event, one.block});
    }
  }
  const std::lock_guard lock(at.mutex);
  at.end_work();
}

void Allocator::Impl::reuse_in_capture(DeviceHeap& at, const Request& request) {
  std::vector<DeviceHeap::Unrecorded> looked_at;
  {
    const std::lock_guard lock(at.mutex);
    const auto others = std::partition(
        at.unrecorded.begin(), at.unrecorded.end(), [&](const DeviceHeap::Unrecorded& one) {
          const Segment& segment = *one.block->segment;
          return one.point == nullptr || segment.pool.get() != request.pool ||
                 segment.stream != request.stream;
        });
    looked_at.assign(std::make_move_iterator(others), std::make_move_iterator(at.unrecorded.end()));
    at.unrecorded.erase(others, at.unrecorded.end());
    if (looked_at.empty()) return;
    at.begin_work();
  }
  std::vector<std::shared_ptr<const CapturePoint>> points;
  for (const DeviceHeap::Unrecorded& one : looked_at) points.push_back(one.point);
  std::vector<bool> done(points.size(), false);
  try {
    done = capture_order->come_before(points, request.stream);
  } catch (...) {  // it cannot be told: they wait for the end of the capture
  }
  const std::lock_guard lock(at.mutex);
  const CountersChange change(at.counters);
  for (std::size_t index = 0; index < looked_at.size(); ++index) {
    Block* block = looked_at[index].block;
    if (!done[index]) {
      at.unrecorded.push_back(std::move(looked_at[index]));
    } else if (--block->waits == 0 && block->state() == BlockState::kWaiting) {
      at.end_active(block);
    }
  }
  at.end_work();
}

// Looks at one stream's events, oldest first, up to the first that has not happened. The one that
// is being looked at is out of the queue meanwhile, so that no two threads look at the same.
void Allocator::Impl::complete_queue(DeviceHeap& at, const DeviceHeap::StreamKey& key) {
  while (true) {
    DeviceHeap::Wait oldest;
    {
      const std::lock_guard lock(at.mutex);
      const auto queue = at.waits.find(key);
      if (queue == at.waits.end()) return;
      if (queue->second.empty()) {
        at.waits.erase(queue);
        return;
      }
      oldest = queue->second.front();
      queue->second.pop_front();
      at.begin_work();
    }
    const auto put_back = [&] {
      const std::lock_guard lock(at.mutex);
      at.waits[key].push_front(oldest);
      at.end_work();
    };
    bool happened = false;
    try {
      happened = device.query_event(key.first, oldest.event);
    } catch (...) {
      put_back();
      throw;
    }
    if (!happened) {
      put_back();
      return;
    }
    heaps[static_cast<std::size_t>(key.first)]->events.give(oldest.event);
    const std::lock_guard lock(at.mutex);
    --oldest.block->waits;
    if (oldest.block->waits == 0 && oldest.block->state() == BlockState::kWaiting) {
      const CountersChange change(at.counters);
      at.end_active(oldest.block);
    }
    at.end_work();
  }
}

void Allocator::Impl::complete_events(DeviceHeap& at) {
  if (driver_is_gone.load() || at.routed()) return;
  retry_unrecorded(at);
  std::vector<DeviceHeap::StreamKey> keys;
  {
    const std::lock_guard lock(at.mutex);
    for (const auto& [key, queue] : at.waits) keys.push_back(key);
  }
  for (const DeviceHeap::StreamKey& key : keys) complete_queue(at, key);
}

// Waits until everything that is recorded by now or meanwhile has happened. Blocks that wait for a
// capture to end are not waited for.
void Allocator::Impl::wait_for_events(DeviceHeap& at, const Pool* only) {
  const auto waited_for = [&] {
    const std::lock_guard lock(at.mutex);
    if (only == nullptr) return !at.waits.empty();
    for (const auto& [key, queue] : at.waits) {
      for (const DeviceHeap::Wait& wait : queue) {
        if (wait.block->segment->pool.get() == only) return true;
      }
    }
    return false;
  };
  if (at.routed()) return;
  {
    const std::lock_guard lock(at.mutex);
    ++at.counters.num_sync_all_streams;
  }
  std::chrono::microseconds pause(10);
  while (!driver_is_gone.load() && !at.routed()) {
    complete_events(at);
    if (!waited_for()) return;
    std::this_thread::sleep_for(pause);
    pause = std::min(pause * 2, std::chrono::microseconds(1000));
  }
}

}  // namespace limbo
