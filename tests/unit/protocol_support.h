// A memory policy that records every access, and rows and exports made of plain numbers, to run the
// protocol's functions one access at a time.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "ipc/protocol/claim.h"
#include "ipc/protocol/close.h"
#include "ipc/protocol/note.h"
#include "ipc/protocol/publish.h"
#include "ipc/protocol/release.h"
#include "ipc/protocol/sweep.h"

namespace limbo::protocol::testing {

struct Access {
  enum Kind { kLoad, kStore, kAdd, kExchange };
  Kind kind = kLoad;
  std::string word;
  std::memory_order order = std::memory_order_relaxed;
  std::uint64_t value = 0;  // loaded, stored or added

  friend bool operator==(const Access&, const Access&) = default;
};

class RecordingMemory {
 public:
  using Ref = std::string;

  std::uint64_t load(const Ref& word, std::memory_order order) {
    step(word);
    return record({Access::kLoad, word, order, words_[word]}).value;
  }
  void store(const Ref& word, std::uint64_t value, std::memory_order order) {
    step(word);
    words_[word] = record({Access::kStore, word, order, value}).value;
  }
  std::uint64_t fetch_add(const Ref& word, std::uint64_t value, std::memory_order order) {
    step(word);
    return std::exchange(words_[word],
                         words_[word] + record({Access::kAdd, word, order, value}).value);
  }
  bool compare_exchange(const Ref& word, std::uint64_t& expected, std::uint64_t desired,
                        std::memory_order order) {
    step(word);
    record({Access::kExchange, word, order, desired});
    const bool equal = words_[word] == expected;
    expected = words_[word];
    if (equal) words_[word] = desired;
    return equal;
  }

  // What others do: not recorded, and no step.
  std::uint64_t& operator[](const Ref& word) { return words_[word]; }

  // Called before every recorded access, with its number from 0: the place where "others" act.
  std::function<void(std::size_t number, const Ref& word)> before_access;

  std::vector<Access> accesses;

 private:
  void step(const Ref& word) {
    const auto act = before_access;
    if (act) act(accesses.size(), word);
  }
  const Access& record(Access access) { return accesses.emplace_back(std::move(access)); }

  std::map<Ref, std::uint64_t> words_;
};

struct PlainRow {
  explicit PlainRow(std::string row_name = "row", std::uint32_t row_groups = 2)
      : name(std::move(row_name)),
        seen_groups(row_groups),
        mirrors(row_groups * std::size_t{kGroupClaims}) {}

  std::string lease_dirty_host() const { return name + ".dirty.host"; }
  std::string lease_dirty_gpu() const { return name + ".dirty.gpu"; }
  std::string group_dirty_host(std::uint32_t g) const {
    return name + ".group" + std::to_string(g) + ".host";
  }
  std::string group_dirty_gpu(std::uint32_t g) const {
    return name + ".group" + std::to_string(g) + ".gpu";
  }
  std::string claim(std::uint32_t slot) const { return name + ".claim" + std::to_string(slot); }

  std::uint32_t groups() const { return static_cast<std::uint32_t>(seen_groups.size()); }
  Seen& seen_lease() { return seen; }
  Seen& seen_group(std::uint32_t g) { return seen_groups[g]; }
  std::uint64_t& mirror(std::uint32_t slot) { return mirrors[slot]; }
  bool has_mirrors(std::uint32_t g) const {
    for (std::size_t i = 0; i < kGroupClaims; ++i) {
      if (mirrors[g * std::size_t{kGroupClaims} + i] != 0) return true;
    }
    return false;
  }
  bool may_scan() { return scans_left-- > 0; }

  std::string name;
  Seen seen;
  std::vector<Seen> seen_groups;
  std::vector<std::uint64_t> mirrors;
  int scans_left = 1'000'000;
};

// Exports e0, e1, ... with counts instead of blocks.
struct PlainExports {
  struct Record {
    int held = 0;
    int in_flight = 0;
    int closed = 0;
    int stayed = 0;
  };

  std::uint32_t capacity() const { return static_cast<std::uint32_t>(records.size()); }
  std::string word(std::uint32_t index) const { return "e" + std::to_string(index); }
  void claimed(std::uint32_t index, PlainRow&) {
    if (records[index].in_flight > 0) --records[index].in_flight;
  }
  void held_more(std::uint32_t index, PlainRow&, std::uint32_t) { ++records[index].held; }
  void held_less(std::uint32_t index, PlainRow&, std::uint32_t) { --records[index].held; }
  int held(std::uint32_t index) const { return records[index].held; }
  void over(std::uint32_t index) { ++records[index].closed; }
  void stays(std::uint32_t index, bool) { ++records[index].stayed; }

  std::vector<Record> records = std::vector<Record>(4);
};

struct PlainExportRow {
  std::string word() const { return "e"; }
  std::string field(std::size_t i) const { return "e.field" + std::to_string(i); }
};

inline std::uint64_t open_word(std::uint64_t generation) {
  return encode(ExportWord{generation, EndReason::kClosed, ExportState::kOpen});
}

}  // namespace limbo::protocol::testing
