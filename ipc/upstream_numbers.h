// What a producer's exports say of numbers that had not come when they were sent on: the shared rows
// (the table is in protocol/upstream.h), and beside each the forwarder that it names.
//
// Guarded by the collect lock. Allocates nothing.
#pragma once

#include <cstdint>

#include "ipc/forwarders.h"
#include "ipc/layout.h"
#include "ipc/ledger_sparse.h"
#include "ipc/protocol/upstream.h"
#include "ipc/views.h"

namespace limbo {

// What a message that is sent on finds no room for.
enum class Shortage {
  kNone,
  kList,      // it would name too many numbers that have not come
  kRows,      // all rows are taken
  kLease,     // its lease has as much as one may have
  kForwards,  // all leases together have as much as they may have
};

// A number, and whose it is.
struct NamedNumber {
  TimelinePoint point;
  Forwarder* forwarder = nullptr;
};

class UpstreamNumbers {
 public:
  // As many rows as exports.
  explicit UpstreamNumbers(LedgerView ledger)
      : ledger_(ledger), records_(ledger.capacities().exports) {}

  // `list`, of an export that is not open yet, names `point` of `forwarder`'s, unless that has come.
  // Where the forwarder's signs of death are not kept, what is still to come counts as lost. Work: the
  // list's length. Answers kNone, kList or kRows.
  [[nodiscard]] Shortage add(protocol::UpstreamWord& list, const TimelinePoint& point,
                             Forwarder& forwarder);
  // The same for all that another list names. Work: the other's length, times what this one had before.
  [[nodiscard]] Shortage add_all(protocol::UpstreamWord& list, const protocol::UpstreamWord& from);
  // Something before it will never come. The rest says nothing then.
  void lose(protocol::UpstreamWord& list) noexcept;
  // The export is over.
  void clear(protocol::UpstreamWord& list) noexcept;

  // visit(point, forwarder).
  template <typename Visitor>
  void for_each(const protocol::UpstreamWord& list, Visitor&& visit) const {
    for (std::uint32_t link = list.first; link != 0;) {
      const Record& record = records_[link - 1];
      link = record.next;
      visit(record.point, *record.forwarder);
    }
  }
  [[nodiscard]] std::uint32_t taken() const noexcept { return taken_; }

 private:
  // Of the list only what begins with `named` can name the same timeline.
  [[nodiscard]] Shortage add(protocol::UpstreamWord& list, const TimelinePoint& point,
                             Forwarder& forwarder, std::uint32_t named);

  struct Record {
    TimelinePoint point;
    Forwarder* forwarder;
    std::uint32_t next;  // index + 1, as in the shared row; or of the free ones
  };

  LedgerView ledger_;
  SparseArray<Record> records_;
  std::uint32_t free_ = 0;        // + 1
  std::uint32_t next_fresh_ = 0;  // rows from here on were never used
  std::uint32_t taken_ = 0;
};

}  // namespace limbo
