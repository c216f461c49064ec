#include "hooks/process.h"

#include <pthread.h>

#include <atomic>
#include <cstdlib>
#include <string_view>

#include "allocator/error.h"
#include "hooks/callbacks.h"

namespace limbo {
namespace {

// Written once each, by the first use and by the child of a fork; read on every allocation.
std::atomic<bool> used{false};
std::atomic<bool> forked{false};

void after_fork_in_child() noexcept {
  if (used.load(std::memory_order_relaxed)) forked.store(true, std::memory_order_relaxed);
}

[[maybe_unused]] const int fork_handler = pthread_atfork(nullptr, nullptr, after_fork_in_child);

// Marks the first use before it happens: a fork in its middle is one after it. Where it fails
// (no device), nothing was used.
template <typename Make>
auto& first_use(Make&& make) {
  if (forked.load(std::memory_order_relaxed)) {
    throw Error(ErrorCode::kForkedChild,
                "This process was forked after its parent had used GPU memory through Limbo, and "
                "a GPU cannot be used from both.",
                "Start processes with the \"spawn\" or \"forkserver\" method.");
  }
  if (used.load(std::memory_order_relaxed)) return make();
  used.store(true, std::memory_order_relaxed);
  try {
    return make();
  } catch (...) {
    used.store(false, std::memory_order_relaxed);
    throw;
  }
}

Allocator& made_allocator() {
  static Allocator& made = []() -> Allocator& {
    Allocator& allocator = process_allocator();
    allocator.add_free_memory_callback(run_free_memory_callbacks);
    return allocator;
  }();
  return made;
}

}  // namespace

Allocator& allocator_in_use() {
  return first_use(made_allocator);
}

Sharing& sharing_in_use() {
  return first_use(process_sharing);
}

bool in_use() noexcept {
  return used.load(std::memory_order_relaxed);
}

bool in_forked_child() noexcept {
  return forked.load(std::memory_order_relaxed);
}

bool simulated() noexcept {
  static const bool chosen = [] {
    const char* name = std::getenv("LIMBO_DEVICE");
    return name != nullptr && std::string_view(name) == "simulated";
  }();
  return chosen;
}

}  // namespace limbo
