// A model of the allocator that knows the right answer: which bytes belong to whom.
//
// Every 512 bytes of device memory have a word on the host with their owner's token; a block that
// overlaps another one meets a foreign token. Besides, the owner writes a pattern into the block
// itself (simulated memory is host memory), which must be there when the block ends. A block ends
// when its free has returned; if it was pinned, with its last pin.
#pragma once

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <unordered_map>

#include "allocator/allocator.h"

namespace limbo::testing {

// A block as the model sees it. Owned by whoever holds the pointer; once freed, by its pins.
struct Live {
  std::byte* data = nullptr;
  std::size_t asked_bytes = 0;
  std::size_t size_bytes = 0;
  StreamRef home;
  std::uint32_t token = 0;
  bool overwritten = false;  // a stream was told to write into its middle words
  bool is_private = false;   // of a private pool: not lendable
  Block* block = nullptr;    // set by the first pin
  std::atomic<int> pins{0};  // one for each that a thread holds, one more for the let-go list
};

class Shadow {
 public:
  void begin(Live& live) {
    mark(live, 0, live.token);
    write_pattern(live);
  }
  void end(const Live& live) {
    check_pattern(live);
    mark(live, live.token, 0);
  }

  // How many units belong to somebody.
  [[nodiscard]] std::size_t owned() {
    std::size_t count = 0;
    for (const auto& [number, chunk] : chunks_) {
      for (const auto& unit : *chunk) count += unit.load() != 0 ? 1 : 0;
    }
    return count;
  }
  [[nodiscard]] int errors() const noexcept { return errors_; }

  static constexpr std::size_t kFreeWordsOffset = 16;  // [16, 32) may be written by streams

 private:
  static constexpr std::size_t kUnit = 512;
  static constexpr std::uintptr_t kChunkBytes = std::uintptr_t{2} << 20;
  using Chunk = std::array<std::atomic<std::uint32_t>, kChunkBytes / kUnit>;

  Chunk& chunk_of(std::uintptr_t address) {
    const std::uintptr_t number = address / kChunkBytes;
    {
      const std::shared_lock lock(mutex_);
      const auto found = chunks_.find(number);
      if (found != chunks_.end()) return *found->second;
    }
    const std::lock_guard lock(mutex_);
    auto& slot = chunks_[number];
    if (slot == nullptr) slot = std::make_unique<Chunk>();
    return *slot;
  }

  void mark(const Live& live, std::uint32_t from, std::uint32_t to) {
    auto address = reinterpret_cast<std::uintptr_t>(live.data);
    const std::uintptr_t end = address + live.size_bytes;
    while (address < end) {
      Chunk& chunk = chunk_of(address);
      do {
        const std::uint32_t seen =
            chunk[address % kChunkBytes / kUnit].exchange(to, std::memory_order_relaxed);
        if (seen != from) fail("the block overlaps another one", seen, from);
        address += kUnit;
      } while (address < end && address % kChunkBytes != 0);
    }
  }

  // Token and size in the first and last words; zeros between them.
  static std::array<std::uint64_t, 4> head_of(const Live& live) {
    return {live.token, live.asked_bytes, 0, 0};
  }
  static void write_pattern(Live& live) {
    const auto head = head_of(live);
    std::memcpy(live.data, head.data(), sizeof(head));
    std::memcpy(live.data + live.size_bytes - sizeof(head[0]), head.data(), sizeof(head[0]));
  }
  void check_pattern(const Live& live) {
    const auto expected = head_of(live);
    std::array<std::uint64_t, 4> head{};
    std::uint64_t tail = 0;
    std::memcpy(head.data(), live.data, sizeof(head));
    std::memcpy(&tail, live.data + live.size_bytes - sizeof(tail), sizeof(tail));
    const std::size_t checked = live.overwritten ? 2 : 4;
    for (std::size_t word = 0; word < checked; ++word) {
      if (head[word] != expected[word]) fail("a block was overwritten", head[word], expected[word]);
    }
    if (tail != live.token) fail("a block's end was overwritten", tail, live.token);
  }

  void fail(const char* what, std::uint64_t seen, std::uint64_t expected) {
    if (++errors_ <= 10) ADD_FAILURE() << what << ": " << seen << " instead of " << expected;
  }

  std::shared_mutex mutex_;  // guards the map, not the chunks' words
  std::unordered_map<std::uintptr_t, std::unique_ptr<Chunk>> chunks_;
  std::atomic<int> errors_{0};
};

}  // namespace limbo::testing
