// Which memory is whose, as a program knows it that uses the allocator: the right answers for
// allocator_target.cpp.
//
// A block is owned from its allocation until its free has returned; if it was pinned, until its last
// pin; if streams were recorded that stand still (held, or being captured), until they go on. No
// other block may lie where an owned one lies. What is in it is known too: a late write into memory
// that was handed out again is seen when that ends.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "allocator/allocator.h"
#include "allocator/device/sim_device.h"
#include "tests/fuzz/target.h"

namespace limbo::fuzz {

// A stream, and whether it stands still. Each time that it goes on again is a new turn.
struct Line {
  StreamRef ref;
  std::optional<SimHold> hold;
  bool capturing = false;
  std::uint64_t turn = 0;

  [[nodiscard]] bool stands() const noexcept { return hold.has_value() || capturing; }
};

struct Owned {
  std::byte* data = nullptr;
  std::size_t size_bytes = 0;
  std::size_t asked_bytes = 0;
  StreamRef home;
  PoolId pool;
  std::uint32_t token = 0;
  bool overwritten = false;  // a stream was told to write into its middle words

  bool allocated = true;  // its owner has not freed it
  int pins = 0;           // the program's
  bool listed = false;    // the let-go list's pin
  Block* block = nullptr;
  std::vector<std::size_t> users;                            // lines that were recorded
  std::vector<std::pair<std::size_t, std::uint64_t>> waits;  // freed: lines, and the turn they have

  [[nodiscard]] bool in_limbo() const noexcept { return !allocated && (pins > 0 || listed); }
};

class Model {
 public:
  using Blocks = std::map<std::byte*, Owned>;

  std::vector<Line> lines;

  [[nodiscard]] Blocks& blocks() noexcept { return blocks_; }

  // The n-th block that `wanted` accepts, counted around; null if there is none.
  template <typename Wanted>
  [[nodiscard]] Owned* pick(std::size_t nth, Wanted wanted) {
    std::vector<Owned*> found;
    for (auto& [data, owned] : blocks_) {
      if (wanted(owned)) found.push_back(&owned);
    }
    return found.empty() ? nullptr : found[nth % found.size()];
  }
  [[nodiscard]] Owned* pick_allocated(std::size_t nth) {
    return pick(nth, [](const Owned& owned) { return owned.allocated; });
  }

  Owned& begin(Owned owned) {
    forget_what_is_over();
    const auto behind = blocks_.lower_bound(owned.data);
    require(behind == blocks_.end() || owned.data + owned.size_bytes <= behind->first,
            "memory that belongs to somebody is not handed out (overlap behind)");
    if (behind != blocks_.begin()) {
      const Owned& before = std::prev(behind)->second;
      require(before.data + before.size_bytes <= owned.data,
              "memory that belongs to somebody is not handed out (overlap before)");
    }
    owned.token = ++tokens_;
    write_pattern(owned);
    return blocks_.emplace(owned.data, std::move(owned)).first->second;
  }

  // Its owner is about to free it.
  void end(Owned& owned) {
    check_pattern(owned);
    owned.allocated = false;
    owned.listed = owned.pins > 0;
    let_go(owned);
  }

  // The program, or the let-go list, is about to drop a pin.
  void drop_pin(Owned& owned, bool list) {
    if (list) {
      require(owned.listed, "the let-go list has a block once, and only pinned ones");
      owned.listed = false;
    } else {
      --owned.pins;
    }
    if (!owned.allocated && !owned.in_limbo()) {
      check_pattern(owned);
      let_go(owned);
    }
  }

  [[nodiscard]] Owned& of_block(const Block* block) {
    Owned* found = pick(0, [&](const Owned& owned) { return owned.block == block; });
    require(found != nullptr, "the let-go list has only blocks that were freed with a pin");
    return *found;
  }

  void forget_what_is_over() {
    for (auto each = blocks_.begin(); each != blocks_.end();) {
      const Owned& owned = each->second;
      const bool over = !owned.allocated && !owned.in_limbo() && !still_waits(owned);
      each = over ? blocks_.erase(each) : std::next(each);
    }
  }

  void check_patterns() {
    for (const auto& [data, owned] : blocks_) {
      if (owned.allocated || owned.in_limbo()) check_pattern(owned);
    }
  }

  // Where a stream may write late: the words between.
  static constexpr std::size_t kFreeWordsOffset = 16;
  static constexpr std::size_t kFreeWords = 4;

 private:
  using Head = std::array<std::uint64_t, 4>;

  [[nodiscard]] bool still_waits(const Owned& owned) const {
    return std::any_of(owned.waits.begin(), owned.waits.end(), [&](const auto& wait) {
      return lines[wait.first].stands() && lines[wait.first].turn == wait.second;
    });
  }

  // It waits for its users from now on: at its free, and at its last pin's end for those that were
  // recorded meanwhile.
  void let_go(Owned& owned) {
    for (const std::size_t line : owned.users) {
      if (lines[line].stands()) owned.waits.emplace_back(line, lines[line].turn);
    }
    owned.users.clear();
  }

  static Head head_of(const Owned& owned) { return {owned.token, owned.asked_bytes, 0, 0}; }
  static void write_pattern(const Owned& owned) {
    const Head head = head_of(owned);
    std::memcpy(owned.data, head.data(), sizeof(head));
    std::memcpy(owned.data + owned.size_bytes - sizeof(head[0]), head.data(), sizeof(head[0]));
  }
  static void check_pattern(const Owned& owned) {
    const Head expected = head_of(owned);
    Head head{};
    std::uint64_t tail = 0;
    std::memcpy(head.data(), owned.data, sizeof(head));
    std::memcpy(&tail, owned.data + owned.size_bytes - sizeof(tail), sizeof(tail));
    const std::size_t words = owned.overwritten ? 2 : 4;
    require(std::equal(head.begin(), head.begin() + words, expected.begin()),
            "nobody writes into memory that belongs to somebody else");
    require(tail == owned.token, "nobody writes into the end of somebody else's memory");
  }

  Blocks blocks_;  // by address
  std::uint32_t tokens_ = 0;
};

}  // namespace limbo::fuzz
