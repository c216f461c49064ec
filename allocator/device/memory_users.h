// Which processes have memory of a device. A device may know, and need not: CudaDevice asks the
// driver's management library (NVML), where there is one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "allocator/device/device.h"

namespace limbo {

struct MemoryUser {
  std::int64_t pid = 0;  // as the driver says it, which may be of another pid namespace
  std::size_t size_bytes = 0;
  bool is_this_process = false;
};

class MemoryUsers {
 public:
  virtual ~MemoryUsers() = default;

  // Also processes of other users of the machine. Empty where it cannot be told. Touches no stream:
  // no capture minds it. May take milliseconds.
  [[nodiscard]] virtual std::vector<MemoryUser> memory_users(int device) = 0;
};

// The device's answer; empty where it does not know, or fails.
[[nodiscard]] std::vector<MemoryUser> find_memory_users(Device& device, int index) noexcept;

}  // namespace limbo
