// Out of memory, as torch's users know it: observers, profiler, text, torch.OutOfMemoryError.
#pragma once

#include <c10/cuda/CUDACachingAllocator.h>

#include <cstddef>

#include "allocator/allocator.h"

namespace limbo {

// From this size on a request is refused without a look at the device: 2^60 bytes.
inline constexpr std::size_t kMostRequestBytes = std::size_t{1} << 60;

void add_out_of_memory_observer(c10::cuda::CUDACachingAllocator::OutOfMemoryObserver observer);

// Tells the profiler and the observers (no lock is held; they may take the GIL), then throws
// c10::OutOfMemoryError with the allocator's text: who has what, the readers of lent memory included.
[[noreturn]] void throw_out_of_memory(const OutOfMemory& error);

// For a request of kMostRequestBytes and more.
[[noreturn]] void throw_request_too_large();

}  // namespace limbo
