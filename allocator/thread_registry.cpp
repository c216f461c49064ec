#include "allocator/thread_registry.h"

#include <pthread.h>

#include <new>
#include <optional>

namespace limbo::thread_registry {

thread_local constinit ThreadWords words __attribute__((tls_model("initial-exec")));

namespace {

// Runs after C++ thread-local destructors, some of which free tensors. Whatever frees later still
// goes the central way; the key is not armed again.
void end_of_thread(void* /*armed*/) {
  ThreadCache* cache = words.first;
  words.current = nullptr;
  words.first = nullptr;
  words.ended = true;
  if (cache == nullptr) return;
  const std::lock_guard lock(mutex());
  while (cache != nullptr) {
    ThreadCache* next = cache->next_of_thread;
    if (cache->owner_id() != 0) cache->owner().retire(*cache);
    delete cache;
    cache = next;
  }
}

// In a fork child: the caches are its parent's, and their locks may have been held by threads that
// the child does not have.
void forget_in_fork_child() noexcept {
  words.current = nullptr;
  words.first = nullptr;
}

// None where some library in the process has used up all of them (1,024).
const std::optional<pthread_key_t>& exit_key() noexcept {
  static const std::optional<pthread_key_t> key = []() noexcept -> std::optional<pthread_key_t> {
    pthread_key_t made = 0;
    if (pthread_key_create(&made, end_of_thread) != 0) return std::nullopt;
    ::pthread_atfork(nullptr, nullptr, forget_in_fork_child);
    return made;
  }();
  return key;
}

}  // namespace

std::mutex& mutex() {
  static auto* made = new std::mutex;
  return *made;
}

bool can_watch_ends() noexcept {
  return exit_key().has_value();
}

void adopt(std::unique_ptr<ThreadCache>& cache) {
  const std::optional<pthread_key_t>& key = exit_key();
  if (!key || pthread_setspecific(*key, &words) != 0) throw std::bad_alloc();
  for (ThreadCache** at = &words.first; *at != nullptr;) {
    ThreadCache* old = *at;
    if (old->owner_id() != 0) {
      at = &old->next_of_thread;
      continue;
    }
    *at = old->next_of_thread;
    if (words.current == old) words.current = nullptr;
    delete old;
  }
  cache->next_of_thread = words.first;
  words.first = cache.release();
}

}  // namespace limbo::thread_registry
