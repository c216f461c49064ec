#include "hooks/process.h"

#include <atomic>
#include <cstdlib>
#include <string_view>

#include "hooks/adapter.h"
#include "hooks/callbacks.h"
#include "hooks/history.h"
#include "hooks/settings.h"
#include "ipc/fork_guard.h"

namespace limbo {
namespace {

std::atomic<bool> used{false};  // written once; read on every allocation

Allocator& made_allocator() {
  static Allocator& made = []() -> Allocator& {
    Allocator& allocator = process_allocator();
    follow_settings(allocator);
    adapter().limit_at_start(allocator);
    start_history(allocator);
    allocator.add_free_memory_callback(run_free_memory_callbacks);
    used.store(true, std::memory_order_relaxed);
    return allocator;
  }();
  return made;
}

}  // namespace

Allocator& allocator_in_use() {
  fork_guard::begin_use();
  return made_allocator();
}

Sharing& sharing_in_use() {
  fork_guard::begin_use();
  used.store(true, std::memory_order_relaxed);
  return process_sharing();
}

bool in_use() noexcept {
  return used.load(std::memory_order_relaxed);
}

bool in_forked_child() noexcept {
  return fork_guard::is_forked_child();
}

bool simulated() noexcept {
  static const bool chosen = [] {
    const char* name = std::getenv("LIMBO_DEVICE");
    return name != nullptr && std::string_view(name) == "simulated";
  }();
  return chosen;
}

}  // namespace limbo
