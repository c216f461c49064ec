// The handles that stock PyTorch sends: what torch's own sharing (`_share_cuda_`), and processes
// that run stock PyTorch on either side, exchange.
//
// Format (torch's native allocator, from the headers and behaviour of torch 2.11): byte 0 the
// version, byte 1 the kind, then for kind 'c' the 64 bytes of the runtime's IPC handle of the whole
// segment; the offset travels beside it. Versions differ for other kinds only. Torch before 2.5
// sent the 64 bytes alone.
#pragma once

#include <c10/cuda/CUDACachingAllocator.h>

#include <cstddef>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>

#include "allocator/allocator.h"

namespace limbo {

// The version that is written, and the newest whose kind 'c' is known to be the same.
inline constexpr unsigned char kStockHandleVersion = 2;
inline constexpr unsigned char kNewestStockHandleVersion = 3;
inline constexpr char kStockHandleKind = 'c';

// What the driver gave that the block lies in: its piece, or, where a private pool's own allocator
// made that, what it was made from. Throws Error(kNotLendable) where the driver does not say, or the
// block lies in more than one.
[[nodiscard]] DriverAllocation driver_allocation_of(Device& device, const BlockView& block);

// A handle of the driver's allocation that holds `data`, with the offset of `data`, which may point
// into the block. Equal for every block of one piece. Throws Error(kNotLendable) where the driver has
// no handle of a private pool's memory.
[[nodiscard]] c10::cuda::CUDACachingAllocator::ShareableHandle make_stock_handle(
    Device& device, const BlockView& block, const void* data);

// Throws Error(kBadDescriptor) for bytes of another length or version, and
// Error(kNotLendable) for kind 'e' (expandable segments).
[[nodiscard]] MemoryHandle parse_stock_handle(std::string_view bytes);

// Pieces of other processes that are mapped here by such handles.
//
// The key is the handle and the device: opened for a second device, a handle is a second mapping.
// The count of users is changed under the lock only, so no opener meets a mapping that is about to
// go. Closing waits for the device, so it happens outside the lock; an opener that comes meanwhile
// opens anew, which the driver counts.
class StockMappings {
 public:
  // The base of the piece on `device`; mapped as long as one of the pointers lives. Where it throws,
  // nothing is mapped that was not before.
  [[nodiscard]] std::shared_ptr<void> open(Device& device, std::string_view handle_bytes,
                                           int device_index);

  // Mappings in use, for tests.
  [[nodiscard]] std::size_t size();

 private:
  using Key = std::pair<std::string, int>;  // the 64 bytes, the device
  struct Mapping {
    void* base = nullptr;
    std::size_t users = 0;
    std::size_t driver_opens = 0;  // two threads may have opened at once: each open needs a close
  };

  // Keeps the mapping of `key` while it lives, once it has a base.
  struct User {
    User(StockMappings& its_mappings, Device& its_device, Key its_key)
        : mappings(its_mappings), device(its_device), key(std::move(its_key)) {}
    ~User();
    User(const User&) = delete;
    User& operator=(const User&) = delete;

    StockMappings& mappings;
    Device& device;
    const Key key;
    void* base = nullptr;
  };

  void drop_user(const Key& key, Device& device) noexcept;
  static void close(Device& device, int device_index, void* base) noexcept;

  std::mutex mutex_;  // guards mappings_; a leaf, no driver call is made under it
  std::map<Key, Mapping> mappings_;
};

}  // namespace limbo
