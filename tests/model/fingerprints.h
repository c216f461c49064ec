// The states that were seen, as 128-bit fingerprints: by several threads, in shards.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <memory>
#include <mutex>
#include <vector>

#include "tests/model/scenario.h"

namespace limbo::model {

struct Fingerprint {
  std::uint64_t low = 0;
  std::uint64_t high = 0;
  friend bool operator==(const Fingerprint&, const Fingerprint&) = default;
};

// Four lanes side by side, since each multiplication waits for the one before it in its lane.
class Hasher {
 public:
  // A multiple of four bytes.
  void eat(const void* data, std::size_t bytes) noexcept {
    const auto* at = static_cast<const unsigned char*>(data);
    for (; bytes >= 32; bytes -= 32, at += 32) {
      std::uint64_t words[4];
      std::memcpy(words, at, 32);
      for (std::size_t i = 0; i < 4; ++i) eat_word(i, words[i]);
    }
    for (std::size_t i = 0; bytes > 0; ++i) {
      const std::size_t size = bytes < 8 ? bytes : 8;
      std::uint64_t word = 0;
      std::memcpy(&word, at, size);
      eat_word(i, word);
      at += size;
      bytes -= size;
    }
  }
  [[nodiscard]] Fingerprint result() const noexcept {
    std::uint64_t low = 0;
    std::uint64_t high = 0;
    for (const std::uint64_t lane : lanes_) {
      low = mixed(low + lane);
      high = mixed((high ^ lane) * 0xc4ceb9fe1a85ec53 + low);
    }
    return {low, high};
  }

 private:
  void eat_word(std::size_t lane, std::uint64_t word) noexcept {
    std::uint64_t& state = lanes_[lane];
    state = (state ^ word) * 0xff51afd7ed558ccd;
    state ^= state >> 29;
  }
  static std::uint64_t mixed(std::uint64_t value) noexcept {
    value = (value ^ value >> 33) * 0xff51afd7ed558ccd;
    value = (value ^ value >> 33) * 0xc4ceb9fe1a85ec53;
    return value ^ value >> 33;
  }
  std::uint64_t lanes_[4] = {0x243f6a8885a308d3, 0x13198a2e03707344, 0xa4093822299f31d0,
                             0x082efa98ec4e6c89};
};

inline void eat_thread(Hasher& hasher, const Thread& thread) {
  hasher.eat(&thread.head, sizeof(thread.head));
  const std::uint32_t counts = std::uint32_t{thread.made} | std::uint32_t{thread.logged} << 8 |
                               std::uint32_t{thread.buffered} << 16 |
                               static_cast<std::uint32_t>(thread.life) << 24;
  hasher.eat(&counts, sizeof(counts));
  hasher.eat(thread.log.data(), thread.logged * sizeof(thread.log[0]));
  hasher.eat(thread.pending.data(), thread.buffered * sizeof(Pending));
}

// Threads of one process with one script may change places: that is the same state.
inline Fingerprint fingerprint_of(const World& world, const Scenario& scenario) {
  Hasher hasher;
  hasher.eat(world.words.data(), sizeof(world.words));
  hasher.eat(&world.own, sizeof(world.own));
  const std::size_t threads = scenario.threads.size();
  for (std::size_t i = 0; i < threads; ++i) {
    std::size_t end = i + 1;
    while (end < threads && scenario.like_the_one_before[end]) ++end;
    if (end == i + 1) {
      eat_thread(hasher, world.threads[i]);
      continue;
    }
    std::array<Fingerprint, kThreads> alike;
    std::size_t count = 0;
    for (; i < end; ++i) {
      Hasher own;
      eat_thread(own, world.threads[i]);
      alike[count++] = own.result();
    }
    --i;
    std::sort(alike.begin(), alike.begin() + count,
              [](const auto& one, const auto& other) { return one.low < other.low; });
    hasher.eat(alike.data(), count * sizeof(Fingerprint));
  }
  return hasher.result();
}

class SeenStates {
 public:
  // True: not seen before.
  bool insert(const Fingerprint& fingerprint) {
    Shard& shard = shards_[fingerprint.high >> 56];
    const std::lock_guard lock(shard.mutex);
    if (2 * shard.size >= shard.table.size()) grow(shard);
    Fingerprint& place = place_of(shard.table, fingerprint);
    if (place == fingerprint) return false;
    place = fingerprint;
    ++shard.size;
    return true;
  }

 private:
  struct Shard {
    std::mutex mutex;
    std::vector<Fingerprint> table = std::vector<Fingerprint>(64);  // {0, 0}: empty
    std::size_t size = 0;
  };

  static Fingerprint& place_of(std::vector<Fingerprint>& table, const Fingerprint& wanted) {
    std::size_t at = wanted.low & (table.size() - 1);
    while (table[at] != Fingerprint{} && table[at] != wanted) at = (at + 1) & (table.size() - 1);
    return table[at];
  }
  static void grow(Shard& shard) {
    std::vector<Fingerprint> larger(2 * shard.table.size());
    for (const Fingerprint& each : shard.table) {
      if (each != Fingerprint{}) place_of(larger, each) = each;
    }
    shard.table = std::move(larger);
  }

  std::array<Shard, 256> shards_;
};

}  // namespace limbo::model
