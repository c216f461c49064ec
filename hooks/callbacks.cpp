#include "hooks/callbacks.h"

#include <c10/cuda/CUDACachingAllocator.h>

#include <cstdio>
#include <memory>
#include <string>

#include "hooks/error_text.h"
#include "hooks/process.h"

namespace limbo {
namespace {

constexpr const char* kCollectorName = "limbo_collect";

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
  // Registering a name twice ends the process, so look first.
  if (c10::FreeCudaMemoryCallbacksRegistry()->Has(kCollectorName)) return false;
  c10::FreeCudaMemoryCallbacksRegistry()->Register(
      kCollectorName, [] { return std::make_unique<CollectCallback>(); });
  return true;
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
