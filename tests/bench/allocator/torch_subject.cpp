#include <ATen/Context.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#include <cuda_runtime_api.h>
#include <unistd.h>

#include <cstdlib>
#include <stdexcept>
#include <string_view>

#include "hooks/install.h"
#include "tests/bench/allocator/subjects.h"
#include "tests/bench/allocator/workloads.h"

namespace limbo::bench {
namespace {

namespace torch_cuda = c10::cuda::CUDACachingAllocator;

struct Torch {
  static void* allocate(std::size_t size_bytes) { return torch_cuda::raw_alloc(size_bytes); }
  static void free(void* data) { torch_cuda::raw_delete(data); }
};

bool on_simulated_device() {
  const char* device = std::getenv("LIMBO_DEVICE");
  return device != nullptr && std::string_view(device) == "simulated";
}

std::string settings_of(const std::string& backend) {
  if (backend == "native-expandable") return "expandable_segments:True";
  return backend == "async" ? "backend:cudaMallocAsync" : "";
}

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

}  // namespace

void prepare_environment(const AllocatorOptions& options, char** argv) {
  if (options.backend == "current") return;
  // torch reads its settings when it is loaded, which was before main.
  constexpr char kSettings[] = "PYTORCH_CUDA_ALLOC_CONF";
  constexpr char kNewerSettings[] = "PYTORCH_ALLOC_CONF";
  const std::string wanted = settings_of(options.backend);
  const bool other_device = options.device != "auto" && variable("LIMBO_DEVICE") != options.device;
  if (variable(kSettings) == wanted && variable(kNewerSettings).empty() && !other_device) return;
  if (other_device) ::setenv("LIMBO_DEVICE", options.device.c_str(), 1);
  ::unsetenv(kNewerSettings);
  wanted.empty() ? ::unsetenv(kSettings) : ::setenv(kSettings, wanted.c_str(), 1);
  ::execv("/proc/self/exe", argv);
  throw std::runtime_error("The program could not be started again with the environment that " +
                           options.backend + " needs.");
}

void choose_backend(const AllocatorOptions& options) {
  if (!on_simulated_device() && c10::cuda::device_count() == 0) {
    throw std::runtime_error(
        "torch sees no GPU; limbo alone can be measured without one, with "
        "--device simulated.");
  }
  if (options.backend == "limbo") install();
  if (on_simulated_device()) return;
  at::globalContext().lazyInitDevice(at::kCUDA);
  enter_thread();
}

std::vector<Measurement> torch_rows(Crew& crew) {
  const bool one_device = on_simulated_device() || c10::cuda::device_count() == 1;
  auto rows = common_rows<Torch>(crew, one_device ? 60 : 70);
  if (one_device) return rows;
  Measurement two;
  two.name = "gpus-2";
  two.what = "pairs of 4 KiB by two threads on two GPUs together";
  two.unit = Unit::kMillionsPerSecond;
  two.threads = 2;
  two.run = [&crew](std::uint64_t count) {
    return crew.run(2, [&](std::size_t index) {
      const c10::cuda::CUDAGuard guard(static_cast<c10::DeviceIndex>(index));
      (void)pairs<Torch>(4096, count);
    });
  };
  Measurement switching;
  switching.name = "switch-gpu";
  switching.what = "cudaSetDevice to the other GPU and a pair of 4 KiB there";
  switching.run = [](std::uint64_t count) {
    const auto start = Clock::now();
    for (std::uint64_t i = 0; i < count; ++i) {
      (void)cudaSetDevice(static_cast<int>(i % 2));
      Torch::free(Torch::allocate(4096));
    }
    const double seconds = seconds_since(start);
    (void)cudaSetDevice(0);
    return seconds;
  };
  rows.push_back(std::move(two));
  rows.push_back(std::move(switching));
  return rows;
}

void enter_thread() {
  if (on_simulated_device()) return;
  c10::cuda::SetDevice(0, true);
  if (cudaFree(nullptr) != cudaSuccess) {
    throw std::runtime_error("No context could be made current in a thread.");
  }
}

std::string gpu_name() {
  if (on_simulated_device()) return "simulated";
  cudaDeviceProp properties{};
  return cudaGetDeviceProperties(&properties, 0) == cudaSuccess ? properties.name : "";
}

}  // namespace limbo::bench
