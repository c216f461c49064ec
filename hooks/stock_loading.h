// Stock loading: the step from torch's wrapper around limbo_malloc to the complete allocator, as
// early as torch lets us (the functions themselves are in capi.h).
#pragma once

#include <c10/cuda/CUDACachingAllocator.h>

namespace limbo {

// Whether it is torch's wrapper around limbo_malloc itself, by the function's address. A plug-in whose
// own function calls limbo_malloc is another one: it may count, or have memory that Limbo knows
// nothing of.
[[nodiscard]] bool is_wrapper_of_limbo(
    const c10::cuda::CUDACachingAllocator::CUDAAllocator* allocator);

// Whether what it hands out is Limbo's: it is the adapter, or such a wrapper.
[[nodiscard]] bool is_limbo(const c10::cuda::CUDACachingAllocator::CUDAAllocator& allocator);

// From now on the step is made when torch initialises CUDA. Takes the place of c10's logger of API
// usage, of which there is one: a logger that the program has set before is lost, one that it sets
// later stays. Does nothing when CUDA is initialised already, or when torch's own logger was asked
// for (PYTORCH_API_USAGE_STDERR). Called once, when the library is loaded.
void follow_initialization();

}  // namespace limbo
