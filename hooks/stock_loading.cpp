// limbo_malloc and limbo_free: the two functions that stock PyTorch loads
// (torch.cuda.memory.CUDAPluggableAllocator), and the step from torch's wrapper around them to the
// complete allocator.
//
// The step is made when torch initialises CUDA, which it tells its logger of API usage just before:
// a process that receives before it allocates would otherwise ask the wrapper, which refuses. Where
// the program has a logger of its own, the first allocation makes the step.
//
// The wrapper keeps a note of every pointer that it handed out, and frees through it. So what was
// allocated through the wrapper (the first allocation; more, if threads raced for it) comes back
// through limbo_free, everything later by the adapter's deleter, and both lead to the same blocks.
#include "hooks/stock_loading.h"

#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/util/Logging.h>
#include <torch/csrc/cuda/CUDAPluggableAllocator.h>

#include <cstdlib>
#include <string>

#include "hooks/adapter.h"
#include "hooks/capi.h"
#include "hooks/error_text.h"
#include "hooks/install.h"

namespace limbo {
namespace {

using Pluggable = torch::cuda::CUDAPluggableAllocator::CUDAPluggableAllocator;

// The function that a wrapper allocates by, which torch keeps to itself and its heirs.
class PluggableFunctions : public Pluggable {
 public:
  static const auto& malloc_of(const Pluggable& wrapper) {
    return wrapper.*(&PluggableFunctions::alloc_fn_);
  }
};

void on_api_usage(const std::string& event) noexcept {
  if (event != "aten.init.cuda") return;
  try {
    const auto* current = c10::cuda::CUDACachingAllocator::allocator.load();
    if (is_wrapper_of_limbo(current)) replace_pluggable_wrapper();
  } catch (...) {
    // What forbids it is told by the first allocation, which nobody can miss.
  }
}

}  // namespace

bool is_wrapper_of_limbo(const c10::cuda::CUDACachingAllocator::CUDAAllocator* allocator) {
  const auto* wrapper = dynamic_cast<const Pluggable*>(allocator);
  if (wrapper == nullptr) return false;
  const auto& function = PluggableFunctions::malloc_of(*wrapper);
  // torch makes one type of every address that Python gives it; a C++ program has the function's own.
  if (const auto* by_address = function.target<void* (*)(std::size_t, int, cudaStream_t)>()) {
    return reinterpret_cast<void*>(*by_address) == reinterpret_cast<void*>(&limbo_malloc);
  }
  const auto* as_declared = function.target<decltype(&limbo_malloc)>();
  return as_declared != nullptr && *as_declared == &limbo_malloc;
}

bool is_limbo(const c10::cuda::CUDACachingAllocator::CUDAAllocator& allocator) {
  return &allocator == &adapter() || is_wrapper_of_limbo(&allocator);
}

void follow_initialization() {
  // Somebody wants torch's own logger, which writes every event to stderr.
  if (const char* wanted = std::getenv("PYTORCH_API_USAGE_STDERR"); wanted && *wanted) return;
  auto* current = c10::cuda::CUDACachingAllocator::allocator.load();
  if (current != nullptr && !current->initialized()) c10::SetAPIUsageLogger(on_api_usage);
}

}  // namespace limbo

extern "C" {

void* limbo_malloc(intptr_t size_bytes, int device, void* stream) {
  return limbo::for_torch([&]() -> void* {
    // Does nothing when torch's allocator is another one: then Limbo backs that, or a pool of it.
    if (!limbo::installed()) limbo::replace_pluggable_wrapper();
    if (size_bytes < 0) {
      throw limbo::Error(limbo::ErrorCode::kBadArgument,
                         "limbo_malloc was asked for " + std::to_string(size_bytes) + " bytes.");
    }
    return limbo::adapter().take(static_cast<std::size_t>(size_bytes), {device, stream});
  });
}

void limbo_free(void* data, intptr_t /*size_bytes*/, int /*device*/, void* /*stream*/) {
  limbo::adapter().give(data);
}

}  // extern "C"
