#include "tests/support/cuda_test_kernels.h"

namespace limbo::testing {

const char kCudaTestKernelSource[] = R"(
typedef unsigned int u32;
typedef unsigned long long u64;

static __device__ u64 now_ns() {
  u64 now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  return now;
}

extern "C" __global__ void write_for(volatile u32* data, u32 value, u64 count, u64 duration_ns) {
  const u64 first = blockIdx.x * (u64)blockDim.x + threadIdx.x;
  const u64 step = gridDim.x * (u64)blockDim.x;
  const u64 start = now_ns();
  do {
    for (u64 i = first; i < count; i += step) data[i] = value;
  } while (now_ns() - start < duration_ns);
}

extern "C" __global__ void count_different(const volatile u32* data, u32 value, u64 count,
                                           u64* different) {
  const u64 first = blockIdx.x * (u64)blockDim.x + threadIdx.x;
  const u64 step = gridDim.x * (u64)blockDim.x;
  u64 mine = 0;
  for (u64 i = first; i < count; i += step) mine += data[i] != value;
  if (mine != 0) atomicAdd(different, mine);
}
)";

}  // namespace limbo::testing

#ifdef LIMBO_HAVE_CUDA

#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <map>
#include <mutex>
#include <string>

#include "tests/support/cuda_driver.h"
#include "tests/support/nvrtc.h"

namespace limbo::testing {
namespace {

constexpr unsigned kBlocks = 32;
constexpr unsigned kThreads = 256;

class CudaTestKernels final : public TestKernels {
 public:
  explicit CudaTestKernels(Device& device)
      : device_(device), launch_(LIMBO_DRIVER_FUNCTION(cuLaunchKernel)) {}

  void prepare(int device) override {
    // One launch of each: loading a module may be put off until then.
    void* memory = device_.try_allocate(device, 4096);
    if (memory == nullptr) throw std::runtime_error("no memory to prepare the kernels with");
    const StreamRef stream{device, device_.create_stream(device)};
    write_for(stream, memory, 1, 16, std::chrono::milliseconds(0));
    (void)count_different(stream, memory, 1, 16);
    device_.destroy_stream(stream);
    device_.free(device, memory);
  }

  void write_for(StreamRef stream, void* data, std::uint32_t value, std::size_t count_words,
                 std::chrono::milliseconds duration) override {
    auto address = reinterpret_cast<CUdeviceptr>(data);
    unsigned long long count = count_words;
    auto duration_ns = static_cast<unsigned long long>(duration.count()) * 1'000'000ULL;
    void* arguments[] = {&address, &value, &count, &duration_ns};
    launch(loaded(stream.device).write_for, stream, arguments);
  }

  std::uint64_t count_different(StreamRef stream, const void* data, std::uint32_t value,
                                std::size_t count_words) override {
    void* counter = device_.try_allocate(stream.device, sizeof(std::uint64_t));
    if (counter == nullptr) throw std::runtime_error("no memory for the counter");
    device_.fill(stream, counter, 0, 2);
    auto address = reinterpret_cast<CUdeviceptr>(data);
    auto counter_address = reinterpret_cast<CUdeviceptr>(counter);
    unsigned long long count = count_words;
    void* arguments[] = {&address, &value, &count, &counter_address};
    launch(loaded(stream.device).count_different, stream, arguments);
    std::uint64_t different = 0;
    device_.copy_to_host(stream, &different, counter, sizeof(different));
    device_.free(stream.device, counter);
    return different;
  }

 private:
  struct Functions {
    CUfunction write_for = nullptr;
    CUfunction count_different = nullptr;
  };

  static std::string architecture_of(int device) {
    const auto get = LIMBO_DRIVER_FUNCTION(cuDeviceGetAttribute);
    CUdevice handle = 0;
    check_cuda("cuDeviceGet", LIMBO_DRIVER_FUNCTION(cuDeviceGet)(&handle, device));
    int major = 0;
    int minor = 0;
    check_cuda("cuDeviceGetAttribute",
               get(&major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, handle));
    check_cuda("cuDeviceGetAttribute",
               get(&minor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, handle));
    return "sm_" + std::to_string(major) + std::to_string(minor);
  }

  // Compiling takes longer than all else that a process needs to start: programs with many processes
  // name a folder of theirs where the first leaves it to the others.
  static std::string cubin_for(const std::string& architecture) {
    const char* folder = std::getenv("LIMBO_TEST_KERNELS");
    if (folder == nullptr) return compile_cubin(kCudaTestKernelSource, architecture);
    const std::string path = std::string(folder) + "/" + architecture + ".cubin";
    if (std::ifstream kept(path, std::ios::binary); kept) {
      return {std::istreambuf_iterator<char>(kept), std::istreambuf_iterator<char>()};
    }
    const std::string cubin = compile_cubin(kCudaTestKernelSource, architecture);
    const std::string mine = path + "." + std::to_string(::getpid());
    std::ofstream(mine, std::ios::binary) << cubin;
    // Whole, or not there: whoever writes it may be killed.
    if (std::rename(mine.c_str(), path.c_str()) != 0) std::remove(mine.c_str());
    return cubin;
  }

  const Functions& loaded(int device) {
    const std::lock_guard lock(mutex_);
    const auto found = functions_.find(device);
    if (found != functions_.end()) return found->second;
    const CurrentContext current(device);
    const std::string cubin = cubin_for(architecture_of(device));
    CUmodule module = nullptr;
    Functions functions;
    check_cuda("cuModuleLoadData", LIMBO_DRIVER_FUNCTION(cuModuleLoadData)(&module, cubin.data()));
    const auto get = LIMBO_DRIVER_FUNCTION(cuModuleGetFunction);
    check_cuda("cuModuleGetFunction", get(&functions.write_for, module, "write_for"));
    check_cuda("cuModuleGetFunction", get(&functions.count_different, module, "count_different"));
    return functions_.emplace(device, functions).first->second;
  }

  void launch(CUfunction function, StreamRef stream, void** arguments) {
    const CurrentContext current(stream.device);
    check_cuda("cuLaunchKernel", launch_(function, kBlocks, 1, 1, kThreads, 1, 1, 0,
                                         static_cast<CUstream>(stream.handle), arguments, nullptr));
  }

  Device& device_;
  decltype(&::cuLaunchKernel) launch_;
  std::mutex mutex_;  // guards functions_, and loading
  std::map<int, Functions> functions_;
};

}  // namespace

std::unique_ptr<TestKernels> make_cuda_test_kernels(Device& device) {
  return std::make_unique<CudaTestKernels>(device);
}

}  // namespace limbo::testing

#else

#include <stdexcept>

namespace limbo::testing {

std::unique_ptr<TestKernels> make_cuda_test_kernels(Device&) {
  throw std::runtime_error("the tests were built without CUDA's headers");
}

}  // namespace limbo::testing

#endif
