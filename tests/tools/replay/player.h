// Plays a trace on an allocator.
#pragma once

#include <cstddef>

#include "tests/support/trace.h"
#include "tests/tools/replay/backend.h"

namespace limbo::replay {

struct Run {
  bool completed = false;               // else it ran out of memory
  std::size_t peak_reserved_bytes = 0;  // the most that was taken from the device
  double ns_per_event = 0;              // wall time over the events of one thread
};

// Plays the trace from an empty allocator, by `threads` threads side by side, each all of it on
// streams of its own. When it returns, no block is out.
[[nodiscard]] Run play(Backend& backend, const testing::Trace& trace, std::size_t limit_bytes,
                       int threads);

// Limits are looked for in steps of this: a segment is a multiple of it.
inline constexpr std::size_t kLimitStepBytes = std::size_t{2} << 20;

// The smallest limit under which one thread completes the trace, found by halving between what is
// requested at once and `enough_bytes`, under which it completes. (A trace may fail under a limit
// that lies above one under which it completes; then this is one of the borders.)
[[nodiscard]] std::size_t find_limit(Backend& backend, const testing::Trace& trace,
                                     std::size_t enough_bytes);

}  // namespace limbo::replay
