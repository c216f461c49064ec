// Numbers about one device's memory. All sizes in bytes.
//
// "small" blocks come from 2 MiB segments (requests of up to 1 MiB), "large" ones from the others.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace limbo {

struct Stat {
  std::int64_t current = 0;
  std::int64_t peak = 0;
  std::int64_t allocated = 0;  // sum of all increases
  std::int64_t freed = 0;      // sum of all decreases
};

enum class SizeKind : std::uint8_t { kAll = 0, kSmall = 1, kLarge = 2 };
using StatByKind = std::array<Stat, 3>;  // indexed by SizeKind

// Allocated: handed out and not freed. Active: allocated, or freed and still waiting (for an event
// of a recorded stream, or for its last unpin). Reserved: taken from the driver.
struct MemoryTotals {
  std::int64_t allocated_bytes = 0;
  std::int64_t reserved_bytes = 0;
};

struct DeviceStats {
  StatByKind allocation;      // blocks handed out
  StatByKind segment;         // segments
  StatByKind active;          // active blocks
  StatByKind inactive_split;  // free blocks that are a part of a segment
  StatByKind allocated_bytes;
  StatByKind reserved_bytes;
  StatByKind active_bytes;
  StatByKind inactive_split_bytes;
  StatByKind requested_bytes;  // as asked for, before rounding

  // Not smaller than AllocationPolicy::max_split_size_bytes when it was made.
  Stat oversize_allocations;  // blocks handed out
  Stat oversize_segments;

  std::int64_t num_alloc_retries = 0;     // requests that needed memory to be given back first
  std::int64_t num_ooms = 0;              // requests that failed
  std::int64_t num_device_alloc = 0;      // segments taken from the driver
  std::int64_t num_device_free = 0;       // segments returned to it
  std::int64_t num_sync_all_streams = 0;  // times that all streams' events were waited for

  std::int64_t limbo_blocks = 0;  // freed and still pinned
  std::int64_t limbo_bytes = 0;
  std::int64_t held_for_readers_bytes = 0;  // free pieces kept because another process maps them

  std::int64_t private_allocated_bytes = 0;  // of allocated_bytes and reserved_bytes: what private
  std::int64_t private_reserved_bytes = 0;   // pools have
};

}  // namespace limbo
