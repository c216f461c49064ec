#include "hooks/callbacks.h"

#include <c10/cuda/CUDACachingAllocator.h>

#include <atomic>
#include <cstdio>
#include <memory>
#include <mutex>
#include <string>

#include "hooks/error_text.h"
#include "hooks/process.h"

namespace limbo {
namespace {

constexpr const char* kCollectorName = "limbo_collect";

std::atomic<bool> registered_by_us{false};

class CollectCallback final : public c10::FreeMemoryCallback {
 public:
  // Called by a foreign allocator, perhaps with its own lock held: collecting never blocks.
  bool Execute() override {
    if (!in_use() || in_forked_child()) return false;
    try {
      return sharing_in_use().collect();
    } catch (...) {
      // The allocator that asks can do nothing about it, and its request is not to fail by it.
      std::fprintf(stderr, "limbo: collecting failed: %s\n",
                   current_exception_report().text.c_str());
      return false;
    }
  }
};

}  // namespace

bool register_collector() {
  static std::mutex mutex;  // guards the step from looking to registering; a leaf
  const std::lock_guard lock(mutex);
  if (registered_by_us.load(std::memory_order_relaxed)) return true;
  // Registering a name twice ends the process, so look first.
  if (c10::FreeCudaMemoryCallbacksRegistry()->Has(kCollectorName)) return false;
  c10::FreeCudaMemoryCallbacksRegistry()->Register(
      kCollectorName, [] { return std::make_unique<CollectCallback>(); });
  registered_by_us.store(true, std::memory_order_relaxed);
  return true;
}

bool foreign_collector_registered() {
  return !registered_by_us.load(std::memory_order_relaxed) &&
         c10::FreeCudaMemoryCallbacksRegistry()->Has(kCollectorName);
}

bool run_free_memory_callbacks() {
  auto* registry = c10::FreeCudaMemoryCallbacksRegistry();
  bool freed = false;
  for (const std::string& name : registry->Keys()) {
    if (name == kCollectorName) continue;
    if (const auto callback = registry->Create(name)) freed |= callback->Execute();
  }
  return freed;
}

}  // namespace limbo
