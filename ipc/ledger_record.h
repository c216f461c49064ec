// What a producer keeps privately about each of its exports, and the chains and the heap that
// thread through these records, so that collecting allocates nothing.
//
// Everything here is guarded by the collect lock.
#pragma once

#include <chrono>
#include <cstdint>

#include "allocator/allocator.h"
#include "ipc/forwarders.h"
#include "ipc/layout.h"
#include "ipc/ledger_sparse.h"

namespace limbo {

using ProducerClock = std::chrono::steady_clock;

// Index + 1 of an export, 0 for none: so that zero bytes are an empty link.
using ExportLink = std::uint32_t;

enum class ExportListKind : std::uint8_t {
  kNone,
  kCandidates,  // something changed: look whether it can be closed
  kIdle,        // nothing in flight, no holder, the owner has not let go; oldest first
};

struct ExportRecord {
  BlockView block;  // pinned once for this export
  std::uint64_t generation = 0;
  std::uint64_t offset_bytes = 0;  // of the shared range from the piece's base
  std::uint64_t size_bytes = 0;
  TimelinePoint points[2];                // what its descriptor names
  TimelinePoint own[2];                   // this process's own numbers that the memory is behind
  ProducerClock::time_point sent;         // like `points`, written by the sender before OPEN
  ProducerClock::time_point counts_from;  // the later of the send and the owner's free
  ProducerClock::time_point deadline;     // while heap_position != 0
  std::chrono::milliseconds time_limit{0};
  std::uint32_t piece_index = 0;
  std::uint32_t held = 0;       // mirrors that name this export
  std::uint32_t promised = 1;   // consumer processes
  std::uint32_t in_flight = 0;  // those of them that are still expected
  ExportLink block_next = 0;    // exports of the same block; the head is the block's lender note
  ExportLink block_previous = 0;
  ExportLink list_next = 0;  // of the list that `list` names
  ExportLink list_previous = 0;
  ExportLink over_next = 0;         // of the chain of what is over, or of the free slots
  std::uint32_t heap_position = 0;  // + 1; 0: no deadline
  Forwarder* forwarder = nullptr;   // who has sent it on, if it was a consumer
  protocol::UpstreamWord upstream;  // what was on its way before that
  ExportListKind list = ExportListKind::kNone;
  bool in_use = false;  // reserved, or its word is not FREE
  bool let_go = false;  // the owner has freed the block
};

// A queue of exports through their records. An export is in one queue at most.
class ExportList {
 public:
  ExportList(SparseArray<ExportRecord>& records, ExportListKind kind)
      : records_(records), kind_(kind) {}

  void push_back(std::uint32_t index) noexcept {
    ExportRecord& record = records_[index];
    record.list = kind_;
    record.list_next = 0;
    record.list_previous = last_;
    (last_ != 0 ? records_[last_ - 1].list_next : first_) = index + 1;
    last_ = index + 1;
    ++size_;
  }
  void remove(std::uint32_t index) noexcept {
    ExportRecord& record = records_[index];
    (record.list_previous != 0 ? records_[record.list_previous - 1].list_next : first_) =
        record.list_next;
    (record.list_next != 0 ? records_[record.list_next - 1].list_previous : last_) =
        record.list_previous;
    record.list = ExportListKind::kNone;
    record.list_next = record.list_previous = 0;
    --size_;
  }
  // Not empty.
  std::uint32_t pop_front() noexcept {
    const std::uint32_t index = first_ - 1;
    remove(index);
    return index;
  }
  [[nodiscard]] std::uint32_t size() const noexcept { return size_; }

 private:
  SparseArray<ExportRecord>& records_;
  const ExportListKind kind_;
  ExportLink first_ = 0;
  ExportLink last_ = 0;
  std::uint32_t size_ = 0;
};

// Exports by deadline: a binary heap of indices; records know their position.
class DeadlineHeap {
 public:
  DeadlineHeap(SparseArray<ExportRecord>& records, std::size_t exports)
      : records_(records), heap_(exports) {}

  void push(std::uint32_t index, ProducerClock::time_point deadline) noexcept {
    records_[index].deadline = deadline;
    place(size_, index);
    rise(size_++);
  }
  // Does nothing for an export without deadline.
  void remove(std::uint32_t index) noexcept {
    if (records_[index].heap_position == 0) return;
    const std::size_t hole = records_[index].heap_position - 1;
    records_[index].heap_position = 0;
    const std::uint32_t last = heap_[--size_];
    if (last == index) return;
    place(hole, last);
    rise(hole);
    sink(records_[last].heap_position - 1);
  }
  [[nodiscard]] bool empty() const noexcept { return size_ == 0; }
  [[nodiscard]] std::size_t size() const noexcept { return size_; }
  [[nodiscard]] std::uint32_t earliest() const noexcept { return heap_[0]; }

 private:
  [[nodiscard]] bool before(std::size_t a, std::size_t b) const noexcept {
    return records_[heap_[a]].deadline < records_[heap_[b]].deadline;
  }
  void place(std::size_t position, std::uint32_t index) noexcept {
    heap_[position] = index;
    records_[index].heap_position = static_cast<std::uint32_t>(position + 1);
  }
  void exchange(std::size_t a, std::size_t b) noexcept {
    const std::uint32_t at_a = heap_[a];
    place(a, heap_[b]);
    place(b, at_a);
  }
  void rise(std::size_t position) noexcept {
    while (position > 0 && before(position, (position - 1) / 2)) {
      exchange(position, (position - 1) / 2);
      position = (position - 1) / 2;
    }
  }
  void sink(std::size_t position) noexcept {
    for (;;) {
      std::size_t least = position;
      for (std::size_t child = 2 * position + 1; child <= 2 * position + 2; ++child) {
        if (child < size_ && before(child, least)) least = child;
      }
      if (least == position) return;
      exchange(position, least);
      position = least;
    }
  }

  SparseArray<ExportRecord>& records_;
  SparseArray<std::uint32_t> heap_;
  std::size_t size_ = 0;
};

}  // namespace limbo
