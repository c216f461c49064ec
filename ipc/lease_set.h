// Which processes have claimed, or declined, an export that was promised to several processes.
//
// It grows with those that come, not with those that were promised: whoever sends on names any number,
// and it is the owner's memory. Noting may not fail; where there is no memory for one more name, the
// process has not used up its promise, and the export ends by its time limit instead.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>

namespace limbo {

// A set of at most `capacity` 64-bit names that are not 0. Guarded by the collect lock.
class LeaseSet {
 public:
  // For so many names there is room from the start: for the readers of one machine, as a rule.
  static constexpr std::uint32_t kRoomAtFirst = 8;

  explicit LeaseSet(std::uint32_t capacity)
      : capacity_(capacity),
        mask_(std::bit_ceil(2 * std::size_t{std::min(capacity, kRoomAtFirst)}) - 1),
        slots_(std::make_unique<std::uint64_t[]>(mask_ + 1)) {}

  // True when it was not in the set and is now. A set that is full takes nobody, nor does one that
  // would have to grow and cannot.
  bool insert(std::uint64_t name) noexcept {
    std::size_t at = place_of(name);
    if (slots_[at] == name || size_ == capacity_) return false;
    if (2 * (std::size_t{size_} + 1) > mask_ + 1) {
      if (!grow()) return false;
      at = place_of(name);
    }
    slots_[at] = name;
    ++size_;
    return true;
  }
  [[nodiscard]] std::uint32_t size() const noexcept { return size_; }

 private:
  // Where it is, or would be. Half of the slots are empty at least, so a search ends.
  [[nodiscard]] std::size_t place_of(std::uint64_t name) const noexcept {
    std::size_t at = static_cast<std::size_t>((name * 0x9e37'79b9'7f4a'7c15ULL) >> 32) & mask_;
    while (slots_[at] != name && slots_[at] != 0) at = (at + 1) & mask_;
    return at;
  }
  bool grow() noexcept {
    const std::size_t slots = 2 * (mask_ + 1);
    std::unique_ptr<std::uint64_t[]> old(new (std::nothrow) std::uint64_t[slots]());
    if (old == nullptr) return false;
    old.swap(slots_);
    mask_ = slots - 1;
    for (std::size_t at = 0; at < slots / 2; ++at) {
      if (old[at] != 0) slots_[place_of(old[at])] = old[at];
    }
    return true;
  }

  const std::uint32_t capacity_;
  std::size_t mask_;
  std::unique_ptr<std::uint64_t[]> slots_;
  std::uint32_t size_ = 0;
};

}  // namespace limbo
