#include "allocator/device/cuda_memory_users.h"

#ifdef LIMBO_HAVE_CUDA

#include <dlfcn.h>
#include <unistd.h>

namespace limbo {
namespace {

// The part of NVML's interface that is used here, which is the same since its first version
// (https://docs.nvidia.com/deploy/nvml-api): its header is not always there.
using NvmlResult = int;
using NvmlDevice = void*;
constexpr NvmlResult kNvmlSuccess = 0;
constexpr NvmlResult kNvmlInsufficientSize = 7;
constexpr unsigned long long kNvmlNotAvailable = ~0ULL;
struct NvmlProcess {
  unsigned pid;
  unsigned long long used_bytes;  // kNvmlNotAvailable where it is not known
};

struct Nvml {
  NvmlResult (*init)() = nullptr;
  NvmlResult (*device_by_uuid)(const char* uuid, NvmlDevice* device) = nullptr;
  NvmlResult (*running_processes)(NvmlDevice device, unsigned* count,
                                  NvmlProcess* processes) = nullptr;
  bool usable = false;

  Nvml() {
    void* const library = ::dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) return;
    find(library, "nvmlInit_v2", init);
    find(library, "nvmlDeviceGetHandleByUUID", device_by_uuid);
    find(library, "nvmlDeviceGetComputeRunningProcesses", running_processes);
    usable = init != nullptr && device_by_uuid != nullptr && running_processes != nullptr &&
             init() == kNvmlSuccess;
  }

  template <class Function>
  static void find(void* library, const char* name, Function& function) {
    function = reinterpret_cast<Function>(::dlsym(library, name));
  }
};

}  // namespace

std::vector<MemoryUser> ask_nvml(const Uuid& gpu) {
  static const Nvml nvml;
  if (!nvml.usable) return {};
  NvmlDevice device = nullptr;
  if (nvml.device_by_uuid(to_string(gpu).c_str(), &device) != kNvmlSuccess) return {};
  std::vector<NvmlProcess> processes(16);
  auto count = static_cast<unsigned>(processes.size());
  NvmlResult result = nvml.running_processes(device, &count, processes.data());
  // Others may start meanwhile.
  for (int attempt = 0; result == kNvmlInsufficientSize && attempt < 4; ++attempt) {
    processes.resize(2 * static_cast<std::size_t>(count) + 16);
    count = static_cast<unsigned>(processes.size());
    result = nvml.running_processes(device, &count, processes.data());
  }
  if (result != kNvmlSuccess) return {};
  processes.resize(count);
  std::vector<MemoryUser> users;
  for (const NvmlProcess& process : processes) {
    if (process.used_bytes == kNvmlNotAvailable) continue;
    users.push_back({process.pid, static_cast<std::size_t>(process.used_bytes),
                     process.pid == static_cast<unsigned>(::getpid())});
  }
  return users;
}

}  // namespace limbo

#endif
