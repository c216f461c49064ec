// What makes segments and pieces.
//
// Nothing outside a provider knows where memory comes from: the way is block -> segment -> provider,
// so several providers can serve one process. A provider never waits for GPU work of its own accord
// and keeps no list of what it made.
#pragma once

#include <cstddef>

namespace limbo {

class Provider {
 public:
  virtual ~Provider() = default;

  // Memory for one piece: 2 MiB-aligned, `size_bytes` (a multiple of 2 MiB) long. Null when the
  // device has no room; throws Error on every other failure, and then nothing was taken. Called
  // with no lock held.
  [[nodiscard]] virtual void* make_piece(int device, std::size_t size_bytes) = 0;

  // Gives a piece back to the driver. Called with no lock held. Throws Error(kDeviceError).
  virtual void return_piece(int device, void* base, std::size_t size_bytes) = 0;
};

}  // namespace limbo
