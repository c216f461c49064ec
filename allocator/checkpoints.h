// Checkpoints: how a private pool was cut into blocks at some moment, and going back to that.
//
// torch's cudagraph trees replay graphs that were captured one after the other into one pool. Before
// another path is captured, the pool must look as it did where the path branches off: what the later
// graphs allocated is free again, what was alive then is allocated again, at the same addresses.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "allocator/pool_id.h"

namespace limbo {

// Constant once it is made. It holds no memory: segments are named by their pieces.
struct Checkpoint {
  struct BlockLayout {
    std::size_t size_bytes = 0;
    std::size_t requested_bytes = 0;
    bool allocated = false;  // two neighbours are never both unallocated
  };
  struct SegmentLayout {
    std::uint64_t piece_id = 0;
    std::vector<BlockLayout> blocks;  // by address; they tile the segment
  };

  int device = 0;
  PoolId pool;
  std::vector<SegmentLayout> segments;
};

// What going back did. A block may be in both: it was allocated before, and is again, by its address.
struct CheckpointDelta {
  std::vector<void*> freed;      // all that were allocated before
  std::vector<void*> allocated;  // all that are now; their owner is whoever went back
};

}  // namespace limbo
