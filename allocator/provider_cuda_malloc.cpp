#include "allocator/provider_cuda_malloc.h"

#include <string>

#include "allocator/address_text.h"
#include "allocator/error.h"
#include "allocator/page_table.h"

namespace limbo {

void* ProviderCudaMalloc::make_piece(int device, std::size_t size_bytes) {
  void* base = device_.try_allocate(device, size_bytes);
  if (base == nullptr || PageTable::can_hold(base, size_bytes)) return base;
  device_.free(device, base);
  throw Error(ErrorCode::kDeviceError,
              "The driver gave " + std::to_string(size_bytes) + " bytes at " + address_text(base) +
                  " on device " + std::to_string(device) +
                  ", which is not 2 MiB-aligned in the lower 128 TiB.",
              "Report this with the driver's version.");
}

void ProviderCudaMalloc::return_piece(int device, void* base, std::size_t /*size_bytes*/) {
  device_.free(device, base);
}

}  // namespace limbo
