// Which processes have claimed, or declined, an export that was promised to several processes. Room
// for all of them is made at the send, so that noting, which may not fail, allocates nothing.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>

namespace limbo {

// A set of at most `capacity` 64-bit names that are not 0. Guarded by the collect lock.
class LeaseSet {
 public:
  explicit LeaseSet(std::uint32_t capacity)
      : capacity_(capacity),
        mask_(std::bit_ceil(2 * std::size_t{capacity}) - 1),
        slots_(std::make_unique<std::uint64_t[]>(mask_ + 1)) {}

  // True when it was not in the set and is now. A set that is full takes nobody.
  bool insert(std::uint64_t name) noexcept {
    // Half of the slots are empty at least, so a search ends.
    for (std::size_t at = first_slot(name);; at = (at + 1) & mask_) {
      if (slots_[at] == name) return false;
      if (slots_[at] != 0) continue;
      if (size_ == capacity_) return false;
      slots_[at] = name;
      ++size_;
      return true;
    }
  }
  [[nodiscard]] std::uint32_t size() const noexcept { return size_; }

 private:
  [[nodiscard]] std::size_t first_slot(std::uint64_t name) const noexcept {
    return static_cast<std::size_t>((name * 0x9e37'79b9'7f4a'7c15ULL) >> 32) & mask_;
  }

  const std::uint32_t capacity_;
  const std::size_t mask_;
  std::unique_ptr<std::uint64_t[]> slots_;
  std::uint32_t size_ = 0;
};

}  // namespace limbo
