// limbo_malloc and limbo_free: the two functions that stock PyTorch loads
// (torch.cuda.memory.CUDAPluggableAllocator), and the step from torch's wrapper around them to the
// complete allocator.
//
// The wrapper keeps a note of every pointer that it handed out, and frees through it. So what was
// allocated through the wrapper (the first allocation; more, if threads raced for it) comes back
// through limbo_free, everything later by the adapter's deleter, and both lead to the same blocks.
#include "hooks/adapter.h"
#include "hooks/capi.h"
#include "hooks/error_text.h"
#include "hooks/install.h"

extern "C" {

void* limbo_malloc(intptr_t size_bytes, int device, void* stream) {
  return limbo::for_torch([&]() -> void* {
    // Does nothing when torch's allocator is another one: then Limbo backs one of its pools.
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
