#include "allocator/provider_foreign.h"

#include <cstdint>
#include <string>

#include "allocator/address_text.h"
#include "allocator/error.h"
#include "allocator/page_table.h"
#include "allocator/sizes.h"

namespace limbo {
namespace {

std::byte* aligned_in(void* memory) noexcept {
  const auto at = reinterpret_cast<std::uintptr_t>(memory);
  const std::uintptr_t ahead = sizes::round_up(at, sizes::kSegmentUnit) - at;
  return static_cast<std::byte*>(memory) + ahead;
}

}  // namespace

void ProviderForeign::require_holdable(int device, void* memory, const void* base,
                                       std::size_t size_bytes) {
  if (PageTable::can_hold(base, size_bytes)) return;
  give_(device, memory);
  throw Error(ErrorCode::kDeviceError,
              "The pool's allocator gave " + std::to_string(size_bytes) + " bytes at " +
                  address_text(memory) + " on device " + std::to_string(device) +
                  ", which is not in the lower 128 TiB of addresses.",
              "Use another allocator for the pool.");
}

void* ProviderForeign::make_piece(int device, std::size_t size_bytes) {
  if (pads_.load(std::memory_order_relaxed)) return make_padded(device, size_bytes);
  void* memory = take_(device, size_bytes);
  if (memory == nullptr) return nullptr;
  if (aligned_in(memory) != memory) {
    pads_.store(true, std::memory_order_relaxed);
    give_(device, memory);
    return make_padded(device, size_bytes);
  }
  require_holdable(device, memory, memory, size_bytes);
  return memory;
}

void* ProviderForeign::make_padded(int device, std::size_t size_bytes) {
  void* memory = take_(device, size_bytes + sizes::kSegmentUnit);
  if (memory == nullptr) return nullptr;
  std::byte* base = aligned_in(memory);
  require_holdable(device, memory, base, size_bytes);
  if (base == memory) return base;
  try {
    const std::lock_guard lock(mutex_);
    padded_.emplace(base, memory);
  } catch (...) {  // no host memory
    give_(device, memory);
    throw;
  }
  return base;
}

void ProviderForeign::return_piece(int device, void* base, std::size_t /*size_bytes*/) {
  // Forgotten before it goes: somebody else may be given the address at once.
  std::map<void*, void*>::node_type known;
  {
    const std::lock_guard lock(mutex_);
    known = padded_.extract(base);
  }
  try {
    give_(device, known.empty() ? base : known.mapped());
  } catch (...) {  // the piece goes on
    if (!known.empty()) {
      const std::lock_guard lock(mutex_);
      padded_.insert(std::move(known));
    }
    throw;
  }
}

}  // namespace limbo
