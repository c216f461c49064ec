// One entry of a device's history (trace.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "allocator/device/device.h"
#include "allocator/pool_id.h"

namespace limbo {

enum class TraceAction : std::uint8_t {
  kAlloc = 0,      // a block was handed out
  kFreeRequested,  // a block was freed by its owner
  kFreeCompleted,  // and is free memory now: at once, or when nothing reads or uses it any more
  kSegmentAlloc,   // memory was taken from the driver
  kSegmentFree,    // and goes back to it
  kSnapshot,       // a snapshot was made
  kOutOfMemory,    // an allocation failed
};
inline constexpr std::size_t kTraceActions = 7;

// Whatever the layer above attaches to a call. Its end may come with the heap lock held: it must not
// block and must not call the allocator.
using CallContext = std::shared_ptr<void>;

struct TraceEntry {
  TraceAction action = TraceAction::kAlloc;
  int device = 0;
  // Of the block or segment. kOutOfMemory: what the device has free, in bytes. kSnapshot: 0.
  std::uintptr_t address = 0;
  // As asked for (blocks), as taken (segments), active (kSnapshot), asked for, rounded (kOutOfMemory).
  std::size_t size_bytes = 0;
  StreamHandle stream = nullptr;  // home of the block or segment; where an allocation failed
  PoolId pool;
  std::uint64_t time = 0;  // by the clock of set_trace_clock
  CallContext context;
  std::string compile_context;  // of the thread, see ThreadNotes
  std::string user_metadata;
};

}  // namespace limbo
