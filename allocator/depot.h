// Where caches leave full chains for other threads: per device and stream, one lock per size.
//
// Small blocks only (512 bytes to 1 MiB); large ones go to the central free list, where they can
// merge. The locks are leaves: nothing is called and nothing is waited for under them, so they may
// be taken inside a gate and under the heap lock. They are held for some ten instructions, so who
// finds one taken spins: sleeping and waking would take a hundred times as long.
//
// All depots of a device together hold no more than one thread's cache may (thread_cache_bytes). A
// chain that finds no room goes to the central free lists.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "allocator/block.h"
#include "allocator/sizes.h"

namespace limbo {

inline constexpr std::size_t kSizeClasses = sizes::kSmallLimit / sizes::kBlockUnit;

// The class of a small block's size, from 0.
[[nodiscard]] constexpr std::size_t size_class(std::size_t size_bytes) noexcept {
  return size_bytes / sizes::kBlockUnit - 1;
}

[[nodiscard]] constexpr std::size_t class_size(std::size_t size_class) noexcept {
  return (size_class + 1) * sizes::kBlockUnit;
}

// How much the depots of one device hold.
class alignas(64) DepotRoom {
 public:
  explicit DepotRoom(std::size_t limit_bytes) noexcept : limit_bytes_(limit_bytes) {}

  // What moves at the moment counts or not.
  [[nodiscard]] std::size_t held_bytes() const noexcept {
    return held_bytes_.load(std::memory_order_relaxed);
  }
  [[nodiscard]] std::size_t limit_bytes() const noexcept { return limit_bytes_; }

  // False if there is no room.
  [[nodiscard]] bool try_hold(std::size_t bytes) noexcept {
    if (held_bytes_.fetch_add(bytes, std::memory_order_relaxed) + bytes <= limit_bytes_)
      return true;
    release(bytes);
    return false;
  }
  void release(std::size_t bytes) noexcept {
    held_bytes_.fetch_sub(bytes, std::memory_order_relaxed);
  }

 private:
  std::atomic<std::size_t> held_bytes_{0};
  const std::size_t limit_bytes_;
};

class StreamDepot {
 public:
  // `room` is the device's.
  explicit StreamDepot(DepotRoom& room) noexcept : room_(room) {}

  // A chain of the class; it is not empty. False if there is no room.
  [[nodiscard]] bool put(std::size_t size_class, const Chain& chain) noexcept;

  // A chain of the class; empty if there is none.
  [[nodiscard]] Chain take(std::size_t size_class) noexcept;

  // Adds everything to `chains`, without walking along them.
  void take_all(ChainList& chains) noexcept;

  // Calls visit(Block*) for every block.
  template <class Visit>
  void visit(const Visit& look) {
    for (Bin& bin : bins_) {
      const Locked locked(bin);
      for (Block* first = bin.first.load(std::memory_order_relaxed); first != nullptr;
           first = first->next_chain) {
        for (Block* block = first; block != nullptr; block = block->link) look(block);
      }
    }
  }

 private:
  // The lock and what it guards, on a line of their own: one transfer between processors, where
  // many threads share a size.
  struct alignas(64) Bin {
    std::atomic<bool> locked{false};
    std::atomic<Block*> first{nullptr};  // of a list of chains, by Block::next_chain
  };
  class Locked {
   public:
    explicit Locked(Bin& bin) noexcept;
    ~Locked() { bin_.locked.store(false, std::memory_order_release); }
    Locked(const Locked&) = delete;
    Locked& operator=(const Locked&) = delete;

   private:
    Bin& bin_;
  };

  std::array<Bin, kSizeClasses> bins_;
  // Bins that chains were put into since the last take_all, so that it passes by the others.
  std::array<std::atomic<std::uint64_t>, kSizeClasses / 64> used_{};
  DepotRoom& room_;
};

}  // namespace limbo
