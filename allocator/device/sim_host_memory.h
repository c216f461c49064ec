// The host memory that streams of this process may write and wait on.
#pragma once

#include <cstdint>
#include <map>
#include <shared_mutex>

#include "allocator/device/device.h"
#include "allocator/device/sim_link.h"

namespace limbo::sim {

// Thread-safe.
class HostRegistrations {
 public:
  explicit HostRegistrations(Link& link) : link_(link) {}

  void add(const HostMemory& memory);
  void remove(void* data);

  // The name under which the companion knows the word. Throws kDeviceError.
  [[nodiscard]] WordName name(const char* call, const std::uint64_t* word, bool for_writing);

 private:
  struct Entry {
    std::uint32_t id = 0;
    std::size_t size_bytes = 0;
    bool writable = false;
  };

  Link& link_;
  std::shared_mutex mutex_;  // guards entries_ and next_id_; a leaf
  std::map<std::uintptr_t, Entry> entries_;
  std::uint32_t next_id_ = 1;  // never reused
};

}  // namespace limbo::sim
