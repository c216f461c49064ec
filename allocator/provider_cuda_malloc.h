// The provider on Device::try_allocate, which is cudaMalloc on hardware: a segment is one piece.
#pragma once

#include "allocator/device/device.h"
#include "allocator/provider.h"

namespace limbo {

class ProviderCudaMalloc final : public Provider {
 public:
  explicit ProviderCudaMalloc(Device& device) : device_(device) {}

  [[nodiscard]] void* make_piece(int device, std::size_t size_bytes) override;
  void return_piece(int device, void* base, std::size_t size_bytes) override;

 private:
  Device& device_;
};

}  // namespace limbo
