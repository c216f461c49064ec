// Memory file descriptors that two processes map: made and sealed here, or received and checked.
#pragma once

#include <cstddef>
#include <string>

#include "allocator/device/device.h"

namespace limbo {

// What a process that is handed the descriptor may do with it.
enum class ReceiverMay {
  kRead,   // it can never be mapped writable, not even by adding or removing seals
  kWrite,  // read and write, but not resize
};

// A mapping of a whole memfd and the descriptor, both owned. A fork child does not inherit the
// mapping (it would write into it). Movable; not thread-safe by itself.
class SharedMemory {
 public:
  SharedMemory() = default;
  // `name` is for people (/proc/PID/maps). `size_bytes` is a positive multiple of the page size;
  // the memory is zero and takes room only where it is touched. The mapping is writable here.
  // Sealed against shrinking, growing, further sealing, and (kRead) future writable mappings.
  // Throws kNoChannel with the system's words.
  [[nodiscard]] static SharedMemory create(const std::string& name, std::size_t size_bytes,
                                           ReceiverMay receiver);

  // Maps what another process created. Takes `fd` over, also when it throws. Throws kNoChannel when
  // the size is another one or a seal is missing: then its maker could change it under the reader.
  [[nodiscard]] static SharedMemory map_received(const std::string& name, int fd,
                                                 std::size_t size_bytes, ReceiverMay receiver);

  ~SharedMemory();
  SharedMemory(SharedMemory&& other) noexcept;
  SharedMemory& operator=(SharedMemory&& other) noexcept;

  [[nodiscard]] void* data() const noexcept { return data_; }
  [[nodiscard]] std::size_t size_bytes() const noexcept { return size_bytes_; }
  [[nodiscard]] int fd() const noexcept { return fd_; }
  [[nodiscard]] bool writable() const noexcept { return writable_; }

  // Gives the memory up and leaves it mapped until the process ends: somebody may write there still.
  void leave_mapped() noexcept;

  // The first `size_bytes` of it, for Device::register_host_memory.
  [[nodiscard]] HostMemory host_memory(std::size_t size_bytes) const noexcept {
    return {data_, size_bytes, fd_, writable_};
  }

 private:
  void map(const std::string& name, std::size_t size_bytes, bool writable);
  void reset() noexcept;

  void* data_ = nullptr;
  std::size_t size_bytes_ = 0;
  int fd_ = -1;
  bool writable_ = false;
};

}  // namespace limbo
