// Threads' caches, and depots, that hold little: they are full again and again.
#pragma once

#include <cstdint>

#include "allocator/options.h"

namespace limbo::testing {

inline constexpr std::int64_t kSmallCacheBytes = std::int64_t{8} << 20;

// Stands before an allocator that is to have such.
class SmallCaches {
 protected:
  SmallCaches() { set_option("thread_cache_bytes", kSmallCacheBytes); }
  ~SmallCaches() { set_option("thread_cache_bytes", 256 << 20); }
};

}  // namespace limbo::testing
