#include "hooks/out_of_memory.h"

#include <c10/core/Allocator.h>
#include <c10/util/Exception.h>

#include <mutex>
#include <string>
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

// What a user may do where memory is there, but not in one piece.
constexpr const char* kAdvice =
    " If reserved but unallocated memory is large try setting "
    "PYTORCH_CUDA_ALLOC_CONF=max_split_size_mb:512 to avoid fragmentation; "
    "torch.cuda.memory_snapshot() shows where it lies.";

}  // namespace

void add_out_of_memory_observer(Observer observer) {
  Observers& where = observers();
  const std::lock_guard lock(where.mutex);
  where.list.push_back(std::move(observer));
}

void throw_out_of_memory(const OutOfMemory& error) {
  c10::reportOutOfMemoryToProfiler(
      static_cast<std::int64_t>(error.size_bytes), current_of(error.stats.allocated_bytes),
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
    // What the driver was asked for, as torch's own allocator says it.
    observer(error.device, error.segment_bytes, room, error.info.free_bytes);
  }
  C10_THROW_ERROR(OutOfMemoryError, std::string(error.what()) + kAdvice);
}

void throw_request_too_large() {
  C10_THROW_ERROR(OutOfMemoryError, "CUDA out of memory. Tried to allocate more than 1EB memory.");
}

}  // namespace limbo
