// The text of a failed allocation.
#include <array>
#include <cstdio>

#include "allocator/allocator.h"
#include "allocator/sizes.h"

namespace limbo {

std::string sizes::size_text(std::size_t size_bytes) {
  if (size_bytes <= 1024) return std::to_string(size_bytes) + " bytes";
  double value = static_cast<double>(size_bytes) / 1024;
  const char* unit = "KiB";
  for (const char* larger : {"MiB", "GiB"}) {
    if (value <= 1024) break;
    value /= 1024;
    unit = larger;
  }
  std::array<char, 64> text{};
  std::snprintf(text.data(), text.size(), "%.2f %s", value, unit);
  return text.data();
}

namespace {

using sizes::size_text;

std::size_t positive(std::int64_t value) {
  return value > 0 ? static_cast<std::size_t>(value) : 0;
}

std::string report(const OutOfMemory& failure) {
  if (failure.requested_bytes >= sizes::kExabyte) {
    return "CUDA out of memory. Tried to allocate more than 1EB memory.";
  }
  const DeviceStats& stats = failure.stats;
  const auto all = static_cast<std::size_t>(SizeKind::kAll);
  const std::int64_t allocated = stats.allocated_bytes[all].current;
  const std::int64_t active = stats.active_bytes[all].current;
  const std::int64_t reserved = stats.reserved_bytes[all].current;
  std::string text = "CUDA out of memory. Tried to allocate " + size_text(failure.requested_bytes) +
                     ". GPU " + std::to_string(failure.device) + " has a total capacity of " +
                     size_text(failure.info.total_bytes) + " of which " +
                     size_text(failure.info.free_bytes) + " is free. ";
  // In the words that programs which read such texts know from PyTorch.
  for (const MemoryUser& user : failure.users) {
    text += user.is_this_process ? "Including non-PyTorch memory, this process"
                                 : "Process " + std::to_string(user.pid);
    text += " has " + size_text(user.size_bytes) + " memory in use. ";
  }
  if (failure.limit_bytes != 0) text += size_text(failure.limit_bytes) + " allowed; ";
  text +=
      "Of the allocated memory " + size_text(positive(allocated)) + " is allocated by PyTorch, ";
  if (stats.private_allocated_bytes > 0) {
    text += "with " + size_text(positive(stats.private_allocated_bytes)) +
            " allocated in private pools (e.g., CUDA Graphs), ";
  }
  text +=
      "and " + size_text(positive(reserved - active)) + " is reserved by PyTorch but unallocated.";
  const std::int64_t private_free = stats.private_reserved_bytes - stats.private_allocated_bytes;
  if (private_free > 0) {
    text += " Private pools keep " + size_text(positive(private_free)) + " that is not allocated.";
  }
  if (stats.limbo_bytes > 0) {
    text += " " + size_text(positive(stats.limbo_bytes)) + " in " +
            std::to_string(stats.limbo_blocks) +
            " block(s) is freed and still lent to other processes.";
  }
  const std::int64_t waiting = active - allocated - stats.limbo_bytes;
  if (waiting > 0) {
    text += " " + size_text(positive(waiting)) + " is freed and waits for work of other streams.";
  }
  if (stats.held_for_readers_bytes > 0) {
    text += " " + size_text(positive(stats.held_for_readers_bytes)) +
            " is free but cannot be returned, because other processes map it.";
  }
  if (!failure.holders.empty()) text += " " + failure.holders;
  return text;
}

}  // namespace

OutOfMemory::OutOfMemory(int on_device, std::size_t requested, MemoryInfo memory_info,
                         DeviceStats device_stats, std::size_t limit, std::string lent_to,
                         std::vector<MemoryUser> memory_users)
    : device(on_device),
      requested_bytes(requested),
      info(memory_info),
      stats(device_stats),
      limit_bytes(limit),
      holders(std::move(lent_to)),
      users(std::move(memory_users)),
      text_(report(*this)) {}

}  // namespace limbo
