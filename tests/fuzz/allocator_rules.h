// What has to hold after every action, and at the end.
#pragma once

#include "tests/fuzz/allocator_pools.h"
#include "tests/fuzz/allocator_world.h"

namespace limbo::fuzz::allocator {

inline void World::hear(const TraceEntry& entry) {
  const auto place = std::make_pair(entry.device, entry.size_bytes);
  bool right = true;
  switch (entry.action) {
    case TraceAction::kAlloc:
      right = heard_blocks_.emplace(entry.address, place).second;
      break;
    case TraceAction::kFreeRequested:
      right = heard_blocks_.erase(entry.address) == 1;
      break;
    case TraceAction::kSegmentAlloc:
      right = heard_segments_.emplace(entry.address, place).second;
      break;
    case TraceAction::kSegmentFree:
      right = heard_segments_.erase(entry.address) == 1;
      break;
    default:
      break;
  }
  if (!right) {
    heard_wrong_ = "a tracker hears of what there is not, action " +
                   std::to_string(static_cast<int>(entry.action));
  }
}

inline void World::check_heard(int device) {
  require(heard_wrong_.empty(), heard_wrong_);
  std::size_t reserved = 0;
  for (const auto& [address, segment] : heard_segments_) {
    if (segment.first == device) reserved += segment.second;
  }
  require(
      static_cast<std::int64_t>(reserved) == allocator_->stats(device).reserved_bytes[kAll].current,
      "a tracker has heard of every segment");
  std::size_t allocated = 0;
  for (const auto& [address, block] : heard_blocks_) allocated += block.first == device ? 1U : 0U;
  require(
      static_cast<std::int64_t>(allocated) == allocator_->stats(device).allocation[kAll].current,
      "a tracker has heard of every block");
}

inline void World::check_numbers(int device) {
  std::int64_t allocated = 0;
  std::int64_t allocated_bytes = 0;
  std::int64_t requested_bytes = 0;
  std::int64_t kept_bytes = 0;
  std::int64_t in_limbo = 0;
  for (const auto& [data, owned] : model_.blocks()) {
    if (owned.home.device != device) continue;
    const auto size = static_cast<std::int64_t>(owned.size_bytes);
    kept_bytes += size;
    if (owned.allocated) {
      ++allocated;
      allocated_bytes += size;
      requested_bytes += static_cast<std::int64_t>(owned.asked_bytes);
    }
    in_limbo += owned.in_limbo() ? 1 : 0;
  }
  const DeviceStats stats = allocator_->stats(device);
  require(stats.allocation[kAll].current == allocated, "so many blocks are allocated");
  require(stats.allocated_bytes[kAll].current == allocated_bytes, "so many bytes are allocated");
  require(stats.requested_bytes[kAll].current >= requested_bytes, "so many bytes were asked for");
  require(stats.active_bytes[kAll].current >= kept_bytes, "what is kept is active");
  require(stats.limbo_blocks == in_limbo, "so many blocks are in limbo");
  require(stats.reserved_bytes[kAll].current >= stats.active_bytes[kAll].current,
          "what is active is reserved");
}

inline void World::check() {
  model_.forget_what_is_over();
  allocator_->check_invariants();
  for (int device = 0; device < kDevices; ++device) {
    check_numbers(device);
    if (tracked_) check_heard(device);
  }
  check_pools();
}

inline void World::end() {
  device_.faults().clear();
  faults_ = false;
  lender_.refused = 0;
  model_.check_patterns();
  for (Line& line : model_.lines) {
    if (line.capturing) {
      line.capturing = false;
      ++line.turn;
      (void)device_.end_capture(line.ref);
    }
    if (line.hold) go_on(line);
  }
  while (Owned* owned = model_.pick_allocated(0)) free_own(owned);
  end_pools();
  while (Owned* owned = model_.pick(0, [](const Owned& each) { return each.pins > 0; })) {
    Block* const block = owned->block;
    model_.drop_pin(*owned, false);
    allocator_->unpin(block);
  }
  drain();
  device_.wait_until_idle();
  allocator_->empty_cache();
  check();
  for (const auto& provider : providers_) {
    require(provider->empty(), "every provider has everything back");
  }
  require(model_.blocks().empty(), "nothing belongs to anybody");
  for (int device = 0; device < kDevices; ++device) {
    const DeviceStats stats = allocator_->stats(device);
    require(stats.active_bytes[kAll].current == 0, "nothing is active");
    require(stats.reserved_bytes[kAll].current == 0, "everything is back with the device");
  }
  allocator_.reset();
  require(device_.balance().allocated == 0, "the device has everything back");
}

}  // namespace limbo::fuzz::allocator
