// What NVML says of a GPU's memory.
#pragma once

#ifdef LIMBO_HAVE_CUDA

#include <vector>

#include "allocator/device/device.h"
#include "allocator/device/memory_users.h"

namespace limbo {

// The compute processes on the GPU, in NVML's order. Empty where the machine has no NVML (a
// container without it), where NVML does not know the GPU (a part of one: MIG), or does not answer.
// Loads the library at the first call, and keeps it.
[[nodiscard]] std::vector<MemoryUser> ask_nvml(const Uuid& gpu);

}  // namespace limbo

#endif
