// The provider on somebody else's allocator: what a private pool with an allocator of its own has.
//
// Such memory need not be 2 MiB-aligned, but segments are. Where the first piece is not, it is given
// back, and from then on 2 MiB more are asked for and the piece begins at the first multiple of
// 2 MiB in it.
#pragma once

#include <atomic>
#include <cstddef>
#include <functional>
#include <map>
#include <mutex>

#include "allocator/provider.h"

namespace limbo {

class ProviderForeign final : public Provider {
 public:
  // Both are called with no lock held, by any thread, and may call out. `take` returns null where
  // there is no room; whatever else it throws reaches the allocation. `give` gets what `take`
  // returned.
  using Take = std::function<void*(int device, std::size_t size_bytes)>;
  using Give = std::function<void(int device, void* memory)>;
  ProviderForeign(Take take, Give give) : take_(std::move(take)), give_(std::move(give)) {}

  // Throws Error(kDeviceError) for memory outside of the lower 128 TiB; then nothing was taken.
  [[nodiscard]] void* make_piece(int device, std::size_t size_bytes) override;
  void return_piece(int device, void* base, std::size_t size_bytes) override;

 private:
  [[nodiscard]] void* make_padded(int device, std::size_t size_bytes);
  void require_holdable(int device, void* memory, const void* base, std::size_t size_bytes);

  const Take take_;
  const Give give_;
  std::atomic<bool> pads_{false};  // a piece was not aligned
  std::mutex mutex_;               // guards padded_; a leaf
  std::map<void*, void*> padded_;  // piece -> what `take` returned, where they differ
};

}  // namespace limbo
