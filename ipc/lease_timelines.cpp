#include "ipc/lease_timelines.h"

#include <algorithm>
#include <string>
#include <utility>

#include "allocator/error.h"
#include "ipc/protocol/memory.h"
#include "ipc/protocol/timeline.h"

namespace limbo {

LeaseTimelines::LeaseTimelines(Device& device, SharedMemory memory, std::uint32_t capacity)
    : device_(device), memory_(std::move(memory)), capacity_(capacity) {}

LeaseTimelines::~LeaseTimelines() {
  unregister();
  if (left_to_driver_) memory_.leave_mapped();
}

void LeaseTimelines::unregister() noexcept {
  if (!registered_) return;
  registered_ = false;
  try {
    device_.unregister_host_memory(memory_.data());
  } catch (const std::exception&) {
    // The driver is gone or broken: it lets go of the memory with the process.
    left_to_driver_ = true;
  }
}

void LeaseTimelines::wait(StreamRef stream, std::uint32_t index, std::uint64_t number) {
  if (number == 0) return;
  if (index >= capacity_) {
    throw Error(ErrorCode::kBadDescriptor, "The message names timeline " + std::to_string(index) +
                                               " of " + std::to_string(capacity_) + ".");
  }
  if (!begin_wait(stream.device)) return;
  try {
    registration_.run([&] {
      device_.register_host_memory(stream.device, memory_.host_memory(memory_.size_bytes()));
      registered_ = true;
    });
    device_.wait_word(stream, reinterpret_cast<const std::uint64_t*>(&timelines()[index].value),
                      number);
  } catch (...) {
    end_wait();
    throw;
  }
  end_wait();
}

bool LeaseTimelines::begin_wait(int device) {
  const std::lock_guard lock(mutex_);
  if (finished_) return false;
  if (std::find(devices_.begin(), devices_.end(), device) == devices_.end()) {
    devices_.push_back(device);
  }
  ++waits_;
  return true;
}

void LeaseTimelines::end_wait() noexcept {
  const std::lock_guard lock(mutex_);
  --waits_;
}

void LeaseTimelines::complete() noexcept {
  for (std::uint32_t index = 0; index < capacity_; ++index) {
    Timeline& timeline = timelines()[index];
    protocol::end_timeline(protocol::g_memory, &timeline.value, &timeline.ended_at);
  }
}

bool LeaseTimelines::ended_before(std::uint32_t index, std::uint64_t number) const noexcept {
  return index < capacity_ &&
         protocol::ended_before(protocol::g_memory, &timelines()[index].ended_at, number);
}

protocol::Arrival LeaseTimelines::arrival(std::uint32_t index,
                                          std::uint64_t number) const noexcept {
  if (index >= capacity_) return protocol::Arrival::kCame;  // there is nothing to come
  return protocol::arrival_of(protocol::g_memory, &timelines()[index].value,
                              &timelines()[index].ended_at, number);
}

bool LeaseTimelines::finish() noexcept {
  const std::lock_guard lock(mutex_);
  if (waits_ != 0) return false;
  finished_ = true;
  return true;
}

void LeaseTimelines::end() noexcept {
  {
    const std::lock_guard lock(mutex_);
    finished_ = true;
  }
  unregister();
}

bool LeaseTimelines::settle() noexcept {
  std::vector<int> devices;
  {
    const std::lock_guard lock(mutex_);
    devices.swap(devices_);
  }
  while (!devices.empty()) {
    const int device = devices.back();
    try {
      device_.synchronize_device(device);
    } catch (const std::exception&) {
      // A device that is broken runs nothing any more; one that could not be waited for may.
      if (!device_.is_lost(device)) break;
    }
    devices.pop_back();
  }
  if (!devices.empty()) {
    const std::lock_guard lock(mutex_);
    devices_.swap(devices);  // they are finished: nobody waits anew
    return false;
  }
  unregister();
  return true;
}

}  // namespace limbo
