// The allocators that can be measured, chosen by the options.
#pragma once

#include <string>
#include <vector>

#include "tests/bench/allocator/crew.h"
#include "tests/bench/allocator/measure.h"
#include "tests/bench/allocator/options.h"

namespace limbo::bench {

// limbo::Allocator by itself, on the process's device.
[[nodiscard]] std::vector<Measurement> core_rows(Crew& crew);

// What must be in the environment before torch is loaded for this back end; sets it and starts the
// program again where it is not.
void prepare_environment(const AllocatorOptions& options, char** argv);

// Makes the back end torch's allocator. Throws std::runtime_error where it cannot be.
void choose_backend(const AllocatorOptions& options);

// torch's allocator, whatever it is; and for limbo what the parts of a pair cost.
[[nodiscard]] std::vector<Measurement> torch_rows(Crew& crew);
[[nodiscard]] std::vector<Measurement> breakdown_rows();

// Makes a context current in the calling thread. (torch's set_device(0) does not.)
void enter_thread();

[[nodiscard]] std::string gpu_name();

}  // namespace limbo::bench
