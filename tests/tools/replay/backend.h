// An allocator that traces are replayed on.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

namespace limbo::replay {

// allocate and free may be called from several threads at once; the rest is one thread's, while no
// block is out.
class Backend {
 public:
  virtual ~Backend() = default;

  // Begins anew: nothing is taken from the device, and at most limit_bytes may be; 0: no limit.
  virtual void start(std::size_t limit_bytes) = 0;

  // Each thread calls it before it allocates.
  virtual void begin_thread() {}

  // The stream number `index`; the first is the default one.
  [[nodiscard]] virtual void* stream(std::size_t index) = 0;

  // False: out of memory. Null is a block too (of 0 bytes).
  [[nodiscard]] virtual bool allocate(std::size_t size_bytes, void* stream, void** block) = 0;
  virtual void free(void* block) = 0;

  // The most that was taken from the device since start.
  [[nodiscard]] virtual std::size_t peak_reserved_bytes() = 0;
};

// Limbo's allocator on this process's device.
[[nodiscard]] std::unique_ptr<Backend> make_limbo_backend();

// PyTorch's native allocator. Throws std::runtime_error where this program was built without torch,
// or there is no GPU.
[[nodiscard]] std::unique_ptr<Backend> make_native_backend();

}  // namespace limbo::replay
