#include "ipc/lease_timelines.h"

#include <algorithm>
#include <string>
#include <utility>

#include "allocator/error.h"

namespace limbo {

LeaseTimelines::LeaseTimelines(Device& device, SharedMemory memory, std::uint32_t capacity)
    : device_(device), memory_(std::move(memory)), capacity_(capacity) {}

LeaseTimelines::~LeaseTimelines() {
  if (!registered_) return;
  try {
    device_.unregister_host_memory(memory_.data());
  } catch (const Error&) {
    // The driver is gone or broken: it lets go of the memory with the process.
  }
}

void LeaseTimelines::wait(StreamRef stream, std::uint32_t index, std::uint64_t number) {
  if (number == 0) return;
  if (index >= capacity_) {
    throw Error(ErrorCode::kBadDescriptor, "The message names timeline " + std::to_string(index) +
                                               " of " + std::to_string(capacity_) + ".");
  }
  std::call_once(registration_, [this] {
    device_.register_host_memory(memory_.host_memory(memory_.size_bytes()));
    registered_ = true;
  });
  {
    const std::lock_guard lock(mutex_);
    if (std::find(devices_.begin(), devices_.end(), stream.device) == devices_.end()) {
      devices_.push_back(stream.device);
    }
  }
  device_.wait_word(stream, reinterpret_cast<const std::uint64_t*>(&timelines()[index].value),
                    number);
}

void LeaseTimelines::complete() noexcept {
  for (std::uint32_t index = 0; index < capacity_; ++index) {
    timelines()[index].value.store(protocol::kTimelineEnded, std::memory_order_relaxed);
  }
}

void LeaseTimelines::settle() noexcept {
  std::vector<int> devices;
  {
    const std::lock_guard lock(mutex_);
    devices.swap(devices_);
  }
  for (const int device : devices) {
    try {
      device_.synchronize_device(device);
    } catch (const Error&) {
      // A device that is broken runs nothing any more.
    }
  }
}

}  // namespace limbo
