#include "hooks/out_of_memory.h"

#include <c10/core/Allocator.h>
#include <c10/util/Exception.h>

#include <mutex>
#include <utility>
#include <vector>

namespace limbo {
namespace {

using Observer = c10::cuda::CUDACachingAllocator::OutOfMemoryObserver;

struct Observers {
  std::mutex mutex;  // guards `list`; a leaf, nothing is called under it
  std::vector<Observer> list;
};

Observers& observers() {
  static auto* made = new Observers;  // never destroyed: allocation outlives static objects
  return *made;
}

std::size_t current_of(const StatByKind& stat) {
  return static_cast<std::size_t>(stat[static_cast<std::size_t>(SizeKind::kAll)].current);
}

std::string size_text(std::size_t size_bytes) {
  return c10::CachingAllocator::format_size(size_bytes);
}

}  // namespace

std::string out_of_memory_text(const OutOfMemory& error) {
  const std::size_t allocated = current_of(error.stats.allocated_bytes);
  const std::size_t reserved = current_of(error.stats.reserved_bytes);
  const auto waiting = static_cast<std::size_t>(error.stats.limbo_bytes);
  std::string text = "CUDA out of memory. Tried to allocate " + size_text(error.requested_bytes) +
                     ". GPU " + std::to_string(error.device) + " has a total capacity of " +
                     size_text(error.info.total_bytes) + " of which " +
                     size_text(error.info.free_bytes) + " is free. ";
  if (error.limit_bytes != 0) {
    text += "This process may take " + size_text(error.limit_bytes) + " (memory fraction). ";
  }
  text += "Limbo has " + size_text(reserved) + " of it: " + size_text(allocated) +
          " are allocated, " + size_text(waiting) +
          " are freed and still held by readers in other processes, " +
          size_text(static_cast<std::size_t>(error.stats.held_for_readers_bytes)) +
          " are free and still mapped by them.";
  if (!error.holders.empty()) text += " " + error.holders;
  return text;
}

void add_out_of_memory_observer(Observer observer) {
  Observers& where = observers();
  const std::lock_guard lock(where.mutex);
  where.list.push_back(std::move(observer));
}

void throw_out_of_memory(const OutOfMemory& error) {
  c10::reportOutOfMemoryToProfiler(
      static_cast<std::int64_t>(error.requested_bytes), current_of(error.stats.allocated_bytes),
      current_of(error.stats.reserved_bytes),
      c10::Device(c10::DeviceType::CUDA, static_cast<c10::DeviceIndex>(error.device)));
  std::vector<Observer> called;
  {
    Observers& where = observers();
    const std::lock_guard lock(where.mutex);
    called = where.list;
  }
  const std::size_t room = error.limit_bytes != 0 ? error.limit_bytes : error.info.total_bytes;
  for (const Observer& observer : called) {
    observer(error.device, error.requested_bytes, room, error.info.free_bytes);
  }
  C10_THROW_ERROR(OutOfMemoryError, out_of_memory_text(error));
}

void throw_request_too_large() {
  C10_THROW_ERROR(OutOfMemoryError, "CUDA out of memory. Tried to allocate more than 1EB memory.");
}

}  // namespace limbo
