#include "allocator/device/cuda_host_memory.h"

#ifdef LIMBO_HAVE_CUDA

#include <cstdio>
#include <mutex>
#include <string>

#include "allocator/error.h"

namespace limbo {
namespace {

std::string spelled(const void* address) {
  char text[32];
  std::snprintf(text, sizeof(text), "%p", address);
  return text;
}

}  // namespace

CUresult CudaHostMemory::try_register(const HostMemory& memory, int device) {
  const DriverEntryPoints& driver = contexts_.driver();
  constexpr unsigned kFlags = CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP;
  if (!memory.writable) {
    int supported = 0;
    driver.cuDeviceGetAttribute(&supported, CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED,
                                contexts_.handle(device));
    if (supported != 0 &&
        driver.cuMemHostRegister(memory.data, memory.size_bytes,
                                 kFlags | CU_MEMHOSTREGISTER_READ_ONLY) == CUDA_SUCCESS) {
      return CUDA_SUCCESS;
    }
    // Some drivers know the flag and refuse it for shared mappings; a mapping that the process may
    // write needs none.
  }
  return driver.cuMemHostRegister(memory.data, memory.size_bytes, kFlags);
}

void CudaHostMemory::add(int device, const HostMemory& memory) {
  if (memory.data == nullptr || memory.size_bytes == 0) {
    throw Error(ErrorCode::kDeviceError, "Host memory of no size cannot be registered.");
  }
  // What can fail comes before the driver's success: it would refuse the next attempt for ever.
  std::map<std::uintptr_t, Registration> made;
  Registration& registration = made[reinterpret_cast<std::uintptr_t>(memory.data)];
  registration.begin = reinterpret_cast<std::uintptr_t>(memory.data);
  registration.size_bytes = memory.size_bytes;
  registration.writable = memory.writable;
  registration.device = device;
  registration.device_begin =
      std::make_unique<std::atomic<CUdeviceptr>[]>(static_cast<std::size_t>(contexts_.count()));
  {
    const CudaCallScope scope(contexts_, device);
    const CUresult result = try_register(memory, device);
    if (result != CUDA_SUCCESS) {
      throw Error(ErrorCode::kDeviceError,
                  describe_driver_error(contexts_.driver(), "cuMemHostRegister", result) + " for " +
                      std::to_string(memory.size_bytes) + " bytes at " + spelled(memory.data) + ".",
                  "Where memory may not be locked, raise the limit (ulimit -l).");
    }
  }
  const std::unique_lock lock(mutex_);
  registrations_.erase(registration.begin);
  registrations_.merge(made);
}

void CudaHostMemory::remove(void* data) {
  int device = 0;
  {
    const std::unique_lock lock(mutex_);
    const auto found = registrations_.find(reinterpret_cast<std::uintptr_t>(data));
    if (found == registrations_.end()) {
      throw Error(ErrorCode::kDeviceError,
                  "No host memory is registered at " + spelled(data) + ".");
    }
    device = found->second.device;
    registrations_.erase(found);
  }
  const CudaCallScope scope(contexts_, device);
  check_driver(contexts_.driver(), "cuMemHostUnregister",
               contexts_.driver().cuMemHostUnregister(data));
}

CUdeviceptr CudaHostMemory::device_address(int device, const std::uint64_t* word, bool write) {
  const auto address = reinterpret_cast<std::uintptr_t>(word);
  Registration* registration = nullptr;
  {
    const std::shared_lock lock(mutex_);
    auto after = registrations_.upper_bound(address);
    if (after != registrations_.begin()) {
      Registration& before = std::prev(after)->second;
      if (address - before.begin + sizeof(std::uint64_t) <= before.size_bytes) {
        registration = &before;
      }
    }
  }
  if (registration == nullptr || address % sizeof(std::uint64_t) != 0) {
    throw Error(ErrorCode::kDeviceError,
                "The word at " + spelled(word) + " is not in registered host memory.");
  }
  if (write && !registration->writable) {
    throw Error(ErrorCode::kDeviceError,
                "The word at " + spelled(word) + " was registered to be waited on only.");
  }
  std::atomic<CUdeviceptr>& begin = registration->device_begin[static_cast<std::size_t>(device)];
  CUdeviceptr seen_at = begin.load(std::memory_order_acquire);
  if (seen_at == 0) {
    check_driver(contexts_.driver(), "cuMemHostGetDevicePointer",
                 contexts_.driver().cuMemHostGetDevicePointer(
                     &seen_at, reinterpret_cast<void*>(registration->begin), 0));
    begin.store(seen_at, std::memory_order_release);
  }
  return seen_at + (address - registration->begin);
}

}  // namespace limbo

#endif
