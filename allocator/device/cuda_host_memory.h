// Host memory that the GPUs write and wait on: what is registered, and where a GPU sees it.
#pragma once

#ifdef LIMBO_HAVE_CUDA

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <shared_mutex>

#include "allocator/device/cuda_contexts.h"
#include "allocator/device/device.h"

namespace limbo {

class CudaHostMemory {
 public:
  explicit CudaHostMemory(CudaContexts& contexts) noexcept : contexts_(contexts) {}

  // Errors as Device::register_host_memory and unregister_host_memory have them.
  void add(int device, const HostMemory& memory);
  void remove(void* data);

  // Where `device` sees the word. Its call scope must be open. Throws kDeviceError for a word that
  // is not registered, or not registered writable where `write` asks for that.
  [[nodiscard]] CUdeviceptr device_address(int device, const std::uint64_t* word, bool write);

 private:
  struct Registration {
    std::uintptr_t begin = 0;
    std::size_t size_bytes = 0;
    bool writable = false;
    int device = 0;  // whose context registered it
    // Per device, where it sees `begin`; 0: not asked yet.
    std::unique_ptr<std::atomic<CUdeviceptr>[]> device_begin;
  };

  [[nodiscard]] CUresult try_register(const HostMemory& memory, int device);

  CudaContexts& contexts_;
  // Guards the map alone; no driver call is made under it. A registration stays where it is until
  // it is removed, and nobody may name its words by then.
  std::shared_mutex mutex_;
  std::map<std::uintptr_t, Registration> registrations_;  // by begin
};

}  // namespace limbo

#endif
