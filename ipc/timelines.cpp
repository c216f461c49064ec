#include "ipc/timelines.h"

#include <exception>
#include <optional>
#include <string>
#include <utility>

#include "allocator/error.h"
#include "ipc/protocol/memory.h"
#include "ipc/protocol/mistakes.h"
#include "ipc/protocol/timeline.h"

namespace limbo {

Timelines::Timelines(Device& device, std::uint32_t capacity)
    : device_(device),
      capacity_(capacity),
      memory_(SharedMemory::create("limbo-timelines",
                                   timelines_bytes(Capacities{.timelines = capacity}),
                                   ReceiverMay::kWrite)) {}

Timelines::Timelines(Device& device, std::uint32_t capacity, SharedMemory memory)
    : device_(device), capacity_(capacity), memory_(std::move(memory)) {}

Timelines::~Timelines() {
  if (!settle()) memory_.leave_mapped();
}

// Nobody advances them any more. As a rule all have landed long ago, and nothing is asked of the
// device; what a sender has enqueued whose link ended meanwhile may be under way. A word is none to
// wait for: others may set it back, and what a failed call has enqueued nobody knows.
bool Timelines::settle() noexcept {
  if (!registered_) return true;
  for (std::uint32_t index = 0; index < entries_.size(); ++index) {
    const Entry& entry = entries_[index];
    if (entry.settled || landed(entry, index)) continue;
    const int device = entry.key.first;
    if (!is_idle(device)) return false;
    for (Entry& other : entries_) other.settled |= other.key.first == device;
  }
  registered_ = false;
  try {
    device_.unregister_host_memory(memory_.data());
  } catch (const std::exception&) {
    // The driver is gone or broken: it lets go of the memory with the process.
    memory_.leave_mapped();
  }
  return true;
}

// Waits for that. A device that is broken runs nothing any more; another one that could not be waited
// for may.
bool Timelines::is_idle(int device) noexcept {
  try {
    device_.synchronize_device(device);
    return true;
  } catch (const std::exception&) {
    return device_.is_lost(device);
  }
}

Timeline& Timelines::timeline(std::uint32_t index) const noexcept {
  return static_cast<Timeline*>(memory_.data())[index];
}

SharedWord& Timelines::value(std::uint32_t index) const noexcept {
  return timeline(index).value;
}

void Timelines::register_once(int device) {
  registration_.run([this, device] {
    device_.register_host_memory(device, memory_.host_memory(memory_.size_bytes()));
    registered_ = true;
  });
}

TimelinePoint Timelines::advance(StreamRef stream) {
  register_once(stream.device);
  const bool shared = protocol::makes(protocol::Mistake::kSharedTimeline);
  const StreamKey key{stream.device, shared ? 0 : device_.stream_id(stream)};
  for (;;) {
    std::uint32_t index = 0;
    Entry* entry = nullptr;
    {
      const std::lock_guard lock(table_mutex_);
      index = entry_of(key);
      entry = &entries_[index];
      entry->last_used = ++uses_;
    }
    const std::lock_guard lock(entry->mutex);
    if (entry->key != key) continue;  // given to another stream meanwhile
    // A number whose write failed is not used again: the write may have been enqueued all the same.
    const std::uint64_t number = ++entry->taken;
    auto* word = reinterpret_cast<std::uint64_t*>(&value(index));
    const WordWrite write{word, number};
    device_.write_words(stream, {&write, 1});
    entry->enqueued = number;
    return {.owner = 0, .index = index, .number = number};
  }
}

std::uint32_t Timelines::entry_of(const StreamKey& key) {
  // First: an entry that has the key and is not found by it would, taken over, take away the next one's.
  const auto [place, is_new] = index_of_.try_emplace(key, 0);
  if (!is_new) return place->second;
  try {
    place->second = static_cast<std::uint32_t>(entries_.size());
    if (place->second < capacity_) {
      entries_.emplace_back().key = key;
    } else {
      place->second = take_over_landed(key);
    }
  } catch (...) {
    index_of_.erase(place);
    throw;
  }
  return place->second;
}

// Nothing is on its way to the word. After a failed write nobody knows.
bool Timelines::landed(const Entry& entry, std::uint32_t index) const noexcept {
  return entry.taken == entry.enqueued &&
         value(index).load(std::memory_order_acquire) >= entry.enqueued;
}

// A timeline is given to another stream only after its last number has landed: what was told to
// others stays true, and its next number is higher.
std::uint32_t Timelines::take_over_landed(const StreamKey& key) {
  std::optional<std::uint32_t> best;
  for (std::uint32_t index = 0; index < capacity_; ++index) {
    Entry& entry = entries_[index];
    if (best && entries_[*best].last_used <= entry.last_used) continue;
    const std::unique_lock lock(entry.mutex, std::try_to_lock);
    if (!lock.owns_lock()) continue;
    if (landed(entry, index)) best = index;
  }
  if (best) {
    Entry& entry = entries_[*best];
    const std::unique_lock lock(entry.mutex, std::try_to_lock);
    // Still landed: a sender in between would have needed table_mutex_ to find it, or have it
    // locked.
    if (lock.owns_lock() && landed(entry, *best)) {
      index_of_.erase(entry.key);
      entry.key = key;
      return *best;
    }
  }
  throw Error(ErrorCode::kLedgerFull,
              "All " + std::to_string(capacity_) +
                  " timelines belong to streams whose sends have not been reached yet.",
              "Raise the option ledger_timelines, or send from fewer streams.");
}

void Timelines::wait(StreamRef stream, const TimelinePoint& point) {
  if (point.number == 0) return;
  if (point.owner != 0 || point.index >= capacity_) {
    throw Error(ErrorCode::kBadArgument, "Timeline " + std::to_string(point.index) + " of owner " +
                                             std::to_string(point.owner) +
                                             " is none of this process.");
  }
  register_once(stream.device);
  device_.wait_word(stream, reinterpret_cast<const std::uint64_t*>(&value(point.index)),
                    point.number);
}

bool Timelines::reached(const TimelinePoint& point) const noexcept {
  return point.number == 0 || value(point.index).load(std::memory_order_acquire) >= point.number;
}

bool Timelines::all_reached() {
  const std::lock_guard lock(table_mutex_);
  for (std::uint32_t index = 0; index < entries_.size(); ++index) {
    // Whoever has it is about to enqueue another number.
    const std::unique_lock entry_lock(entries_[index].mutex, std::try_to_lock);
    if (!entry_lock.owns_lock()) return false;
    const std::uint64_t now = value(index).load(std::memory_order_acquire);
    if (static_cast<std::int64_t>(now - entries_[index].enqueued) < 0) return false;
  }
  return true;
}

void Timelines::end_all() noexcept {
  for (std::uint32_t index = 0; index < capacity_; ++index) {
    protocol::end_timeline(protocol::g_memory, &timeline(index).value, &timeline(index).ended_at);
  }
}

protocol::Arrival Timelines::arrival(const TimelinePoint& point) const noexcept {
  if (point.index >= capacity_) return protocol::Arrival::kCame;  // there is nothing to come
  Timeline& words = timeline(point.index);
  return protocol::arrival_of(protocol::g_memory, &words.value, &words.ended_at, point.number);
}

}  // namespace limbo
