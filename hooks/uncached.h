// Memory straight from the driver, for programs that switch caching off
// (PYTORCH_NO_CUDA_MEMORY_CACHING=1, torch.cuda.caching_allocator_enable(False)).
//
// Such memory is known by its pointer, not by its deleter, because a DataPtr of Limbo has one fixed
// deleter. It is in no statistics, as in torch, and cannot be lent.
#pragma once

#include <atomic>
#include <cstddef>
#include <mutex>
#include <unordered_map>

#include "allocator/device/device.h"

namespace limbo {

class UncachedMemory {
 public:
  // Throws OutOfMemory when the device has no room.
  [[nodiscard]] void* allocate(std::size_t size_bytes, int device);

  // False when `data` did not come from allocate.
  bool free(void* data);

  [[nodiscard]] bool has(void* data);

  // Whether there is any: what a free of cached memory asks first, without a lock.
  [[nodiscard]] bool any() const noexcept { return count_.load(std::memory_order_relaxed) != 0; }

 private:
  // A thread that was handed memory of this kind sees a count that includes it: whoever handed the
  // pointer over has ordered the two.
  std::atomic<std::size_t> count_{0};
  std::mutex mutex_;  // guards devices_; a leaf, no driver call is made under it
  std::unordered_map<void*, int> devices_;
};

}  // namespace limbo
