// How the protocol's functions touch shared words: through a memory policy.
//
// Every function of this folder is a template over `Memory` and makes each access to a shared word
// by one call on it. The product passes StdMemory; a model passes a policy that stops at every
// access and lets stores linger, and so explores the very code that the product runs.
//
// A policy has
//   Memory::Ref                                        names one 64-bit shared word; cheap to copy
//   std::uint64_t load(Ref, std::memory_order)
//   void store(Ref, std::uint64_t, std::memory_order)
//   std::uint64_t fetch_add(Ref, std::uint64_t, std::memory_order)     returns the value before
//   bool compare_exchange(Ref, std::uint64_t& expected, std::uint64_t desired, std::memory_order)
//
// No fences anywhere: thread sanitizers do not know them, and ordered operations are enough.
#pragma once

#include <atomic>
#include <cstdint>

namespace limbo::protocol {

struct StdMemory {
  using Ref = std::atomic<std::uint64_t>*;

  static std::uint64_t load(Ref word, std::memory_order order) noexcept {
    return word->load(order);
  }
  static void store(Ref word, std::uint64_t value, std::memory_order order) noexcept {
    word->store(value, order);
  }
  static std::uint64_t fetch_add(Ref word, std::uint64_t value, std::memory_order order) noexcept {
    return word->fetch_add(value, order);
  }
  // On failure `expected` is what was there, read with acquire.
  static bool compare_exchange(Ref word, std::uint64_t& expected, std::uint64_t desired,
                               std::memory_order order) noexcept {
    return word->compare_exchange_strong(expected, desired, order, std::memory_order_acquire);
  }
};

// What the product passes; it has no state.
inline StdMemory g_memory;

}  // namespace limbo::protocol
