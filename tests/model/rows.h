// What the protocol's functions call Row and Exports, over the model's state.
#pragma once

#include "ipc/protocol/close.h"
#include "ipc/protocol/publish.h"
#include "ipc/protocol/release.h"
#include "ipc/protocol/sweep.h"
#include "tests/model/memory.h"
#include "tests/model/scenario.h"

namespace limbo::model {

// The words of a lease. Those that the scenario has no use for are nowhere.
struct RowWords {
  const Scenario* scenario = nullptr;
  std::uint32_t lease = 0;

  [[nodiscard]] Word lease_dirty_host() const { return lease_word(lease, 0); }
  [[nodiscard]] Word lease_dirty_gpu() const {
    return scenario->streams.empty() ? kNowhere : lease_word(lease, 1);
  }
  [[nodiscard]] Word group_dirty_host(std::uint32_t group) const {
    return lease_word(lease, 2 + 2 * group);
  }
  [[nodiscard]] Word group_dirty_gpu(std::uint32_t group) const {
    return scenario->streams.empty() ? kNowhere : lease_word(lease, 3 + 2 * group);
  }
  [[nodiscard]] Word claim(std::uint32_t slot) const {
    return slot % kSlotsPerGroup < scenario->slots_per_group ? claim_word(lease, slot) : kNowhere;
  }
  [[nodiscard]] std::uint32_t groups() const { return scenario->groups; }
};

// A lease as its producer keeps it.
struct ModelRow : RowWords {
  World* world = nullptr;

  [[nodiscard]] RowRecord& record() const { return world->own.producer.rows[lease]; }
  [[nodiscard]] protocol::Seen& seen_lease() const { return record().lease; }
  [[nodiscard]] protocol::Seen& seen_group(std::uint32_t group) const {
    return record().groups[group];
  }
  [[nodiscard]] std::uint64_t& mirror(std::uint32_t slot) const { return record().mirrors[slot]; }
  [[nodiscard]] bool has_mirrors(std::uint32_t group) const {
    for (std::uint32_t i = 0; i < kSlotsPerGroup; ++i) {
      if (mirror(group * kSlotsPerGroup + i) != 0) return true;
    }
    return false;
  }
  [[nodiscard]] static bool may_scan() { return true; }
};

// The producer's exports: the rules of ipc/ledger_exports.
class ModelExports {
 public:
  ModelExports(World& world, const Memory& memory) : world_(world), memory_(memory) {}

  [[nodiscard]] static std::uint32_t capacity() { return kExports; }
  [[nodiscard]] static Word word(std::uint32_t index) { return export_word(index); }
  void claimed(std::uint32_t index, const ModelRow& row) { claimed_by(index, row.lease); }
  void claimed_by(std::uint32_t index, std::uint32_t who);
  void held_more(std::uint32_t index, const ModelRow& row, std::uint32_t slot);
  void held_less(std::uint32_t index, const ModelRow& row, std::uint32_t slot);
  [[nodiscard]] std::uint32_t held(std::uint32_t index) const;
  void over(std::uint32_t index);
  void stays(std::uint32_t index, bool complete);

  // A slot with its record, for one send; kNoIndex when the table is full.
  std::uint32_t reserve(std::uint32_t block, std::uint32_t consumers);
  void let_go(std::uint32_t block);
  void clear_in_flight(std::uint32_t index);
  // What may be closed, of the first `left` candidates, a bit each; counts them down.
  // Of a table of `table` exports that is more than half full the idle ones too, oldest first.
  std::uint8_t collect_batch(std::uint8_t& left, std::uint32_t table);
  [[nodiscard]] bool more_than_half_full(std::uint32_t table, std::uint32_t closing = 0) const;
  [[nodiscard]] std::uint32_t candidates() const;

 private:
  [[nodiscard]] Record& record(std::uint32_t index) const {
    return world_.own.producer.exports[index];
  }
  void changed(std::uint32_t index);
  void leave_lists(std::uint32_t index);
  void push(std::uint32_t index, List list);
  [[nodiscard]] std::uint32_t first_of(List list) const;
  // The producer's own word, by a thread that holds the lock: no step, since nobody else writes it.
  [[nodiscard]] protocol::ExportWord read(std::uint32_t index) const {
    return protocol::decode_export(memory_.peek(export_word(index)));
  }

  World& world_;
  const Memory& memory_;
};

// Says once which rule was broken.
void break_rule(World& world, Rule rule, std::uint32_t about = 0);

}  // namespace limbo::model

template <>
inline constexpr std::uint32_t limbo::protocol::kGroupClaimsOf<limbo::model::RowWords> =
    limbo::model::kSlotsPerGroup;
template <>
inline constexpr std::uint32_t limbo::protocol::kGroupClaimsOf<limbo::model::ModelRow> =
    limbo::model::kSlotsPerGroup;
