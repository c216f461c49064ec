// Which caches a thread has, and what happens to them when it ends.
//
// One lock for the process, the *registry lock*, guards the lists of caches and the right to stop
// gates. Order of locks: registry lock, then a heap lock, then a depot lock. Nobody waits for the
// registry lock inside a gate.
#pragma once

#include <mutex>

#include "allocator/thread_cache.h"

namespace limbo {

// An allocator, as its threads' caches see it.
class ThreadCacheOwner {
 public:
  virtual ~ThreadCacheOwner() = default;

  // The cache's thread ends: take everything out of it. Called under the registry lock.
  virtual void retire(ThreadCache& cache) noexcept = 0;
};

namespace thread_registry {

// A thread's own words: one plain access each, because they live at a fixed distance from the
// thread's register (initial-exec; a library may only have little of this, so keep it small).
struct ThreadWords {
  ThreadCache* current = nullptr;  // of the allocator that was used last
  ThreadCache* first = nullptr;    // all of this thread, linked by next_of_thread
  int callback_depth = 0;          // free-memory callbacks that this thread is inside of
  bool ended = false;              // the thread's end was seen: no caches any more
};
extern thread_local constinit ThreadWords words __attribute__((tls_model("initial-exec")));

// Never destroyed.
[[nodiscard]] std::mutex& mutex();

// Whether threads' ends can be watched: else no thread gets a cache.
[[nodiscard]] bool can_watch_ends() noexcept;

// Takes a cache over for this thread, whose end retires and deletes it. Caches of allocators that
// have ended are deleted on the way. Throws when the thread's end cannot be watched; then the cache
// is still the caller's. Caller holds the registry lock.
void adopt(std::unique_ptr<ThreadCache>& cache);

}  // namespace thread_registry
}  // namespace limbo
