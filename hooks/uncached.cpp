#include "hooks/uncached.h"

#include "allocator/allocator.h"
#include "hooks/process.h"

namespace limbo {

void* UncachedMemory::allocate(std::size_t size_bytes, int device) {
  Allocator& allocator = allocator_in_use();
  void* data = allocator.device().try_allocate(device, size_bytes);
  if (data == nullptr) {
    // What the cache keeps may be just what is missing.
    allocator.empty_cache(device);
    data = allocator.device().try_allocate(device, size_bytes);
  }
  if (data == nullptr) {
    throw OutOfMemory(device, size_bytes, allocator.device().memory_info(device),
                      allocator.stats(device), allocator.limit_bytes(device), {},
                      find_memory_users(allocator.device(), device));
  }
  try {
    const std::lock_guard lock(mutex_);
    devices_.emplace(data, device);
    count_.fetch_add(1, std::memory_order_relaxed);
  } catch (...) {  // no host memory
    allocator.device().free(device, data);
    throw;
  }
  return data;
}

bool UncachedMemory::has(void* data) {
  if (!any()) return false;
  const std::lock_guard lock(mutex_);
  return devices_.contains(data);
}

bool UncachedMemory::free(void* data) {
  int device = 0;
  {
    const std::lock_guard lock(mutex_);
    const auto found = devices_.find(data);
    if (found == devices_.end()) return false;
    device = found->second;
    devices_.erase(found);
    count_.fetch_sub(1, std::memory_order_relaxed);
  }
  allocator_in_use().device().free(device, data);
  return true;
}

}  // namespace limbo
