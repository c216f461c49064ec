#include "allocator/device/sim_host_memory.h"

#include <unistd.h>

#include <mutex>
#include <string>

#include "allocator/error.h"

namespace limbo::sim {

namespace {

[[noreturn]] void fail_host_memory(const char* call, const std::string& words) {
  throw Error(ErrorCode::kDeviceError, std::string(call) + ": " + words + ".");
}

}  // namespace

void HostRegistrations::add(const HostMemory& memory) {
  constexpr const char* kCall = "register_host_memory";
  const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  const auto base = reinterpret_cast<std::uintptr_t>(memory.data);
  if (base == 0 || base % page != 0 || memory.size_bytes == 0 || memory.size_bytes % page != 0) {
    fail_host_memory(kCall,
                     "invalid argument (the memory must consist of whole pages; its size is " +
                         std::to_string(memory.size_bytes) + " bytes)");
  }
  if (memory.fd < 0)
    fail_host_memory(kCall, "invalid argument (the simulated device needs its descriptor)");
  Request request;
  {
    const std::unique_lock lock(mutex_);
    const auto after = entries_.lower_bound(base + memory.size_bytes);
    if (after != entries_.begin()) {
      const auto& [other, entry] = *std::prev(after);
      if (other + entry.size_bytes > base)
        fail_host_memory(kCall, "the memory is already registered");
    }
    request.id = next_id_++;
    entries_[base] = {request.id, memory.size_bytes, memory.writable};
  }
  request.kind = RequestKind::kRegister;
  request.size_bytes = memory.size_bytes;
  request.writable = memory.writable ? 1 : 0;
  try {
    link_.request(kCall, request, memory.fd);
  } catch (...) {
    const std::unique_lock lock(mutex_);
    entries_.erase(base);
    throw;
  }
}

void HostRegistrations::remove(void* data) {
  Request request;
  request.kind = RequestKind::kUnregister;
  {
    const std::unique_lock lock(mutex_);
    const auto found = entries_.find(reinterpret_cast<std::uintptr_t>(data));
    if (found == entries_.end()) {
      fail_host_memory("unregister_host_memory", "the memory is not registered");
    }
    request.id = found->second.id;
    entries_.erase(found);
  }
  link_.request("unregister_host_memory", request, -1);
}

WordName HostRegistrations::name(const char* call, const std::uint64_t* word, bool for_writing) {
  const auto address = reinterpret_cast<std::uintptr_t>(word);
  const std::shared_lock lock(mutex_);
  auto after = entries_.upper_bound(address);
  if (after == entries_.begin() || address % sizeof(std::uint64_t) != 0) {
    fail_host_memory(call, "invalid argument (the word is not in registered host memory)");
  }
  const auto& [base, entry] = *--after;
  if (address - base + sizeof(std::uint64_t) > entry.size_bytes) {
    fail_host_memory(call, "invalid argument (the word is not in registered host memory)");
  }
  if (for_writing && !entry.writable) {
    fail_host_memory(call, "invalid argument (the word was registered for waiting only)");
  }
  return (WordName{entry.id} << kWordShift) | (address - base);
}

}  // namespace limbo::sim
