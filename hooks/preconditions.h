// What must hold before Limbo may serve this process, each a clear error.
#pragma once

#include <c10/cuda/CUDACachingAllocator.h>

#include <string>
#include <string_view>
#include <vector>

namespace limbo {

// Throws Error(kWrongTorch) under another minor version of torch, Error(kAlreadyInUse) when another
// copy of the library was loaded before this one.
void require_usable();

// Remembers that another copy was there first. Called once, while the library is loaded.
void note_second_copy() noexcept;

// Throws Error(kAlreadyInUse) when `current` is initialised and has memory out on any device, or
// cannot say whether it has.
void require_unused(c10::cuda::CUDACachingAllocator::CUDAAllocator& current);
void require_device_unused(c10::cuda::CUDACachingAllocator::CUDAAllocator& current, int device);

// The paths under which libraries of this name are loaded, for instance "libtorch_limbo".
[[nodiscard]] std::vector<std::string> loaded_paths(std::string_view name);

}  // namespace limbo
