// The test kernels on NVIDIA GPUs, compiled by NVRTC at run time.
#pragma once

#include <memory>

#include "tests/support/test_kernels.h"

namespace limbo::testing {

// CUDA C++, as NVRTC takes it.
extern const char kCudaTestKernelSource[];

[[nodiscard]] std::unique_ptr<TestKernels> make_cuda_test_kernels(Device& device);

}  // namespace limbo::testing
