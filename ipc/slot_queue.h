// A queue of claim slots with room for all of them, so that putting one in cannot fail.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

namespace limbo {

class SlotQueue {
 public:
  // For at most `capacity` slots at a time; more than 0.
  explicit SlotQueue(std::uint32_t capacity)
      : capacity_(capacity), slots_(new std::uint32_t[capacity]) {}

  [[nodiscard]] bool empty() const noexcept { return size_ == 0; }
  [[nodiscard]] std::uint32_t size() const noexcept { return size_; }

  void push_back(std::uint32_t slot) noexcept { slots_[at(size_++)] = slot; }
  void push_front(std::uint32_t slot) noexcept {
    first_ = at(capacity_ - 1);
    ++size_;
    slots_[first_] = slot;
  }
  // Not of an empty one.
  [[nodiscard]] std::uint32_t front() const noexcept { return slots_[first_]; }
  void pop_front() noexcept {
    first_ = at(1);
    --size_;
  }

 private:
  [[nodiscard]] std::uint32_t at(std::uint32_t behind_first) const noexcept {
    const std::uint32_t place = first_ + behind_first;
    return place < capacity_ ? place : place - capacity_;
  }

  const std::uint32_t capacity_;
  const std::unique_ptr<std::uint32_t[]> slots_;
  std::uint32_t first_ = 0;
  std::uint32_t size_ = 0;
};

}  // namespace limbo
