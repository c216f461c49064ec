// A lease: what a producer keeps about one consumer. Guarded by the collect lock.
//
// Its row is one memfd, made for this consumer and never used for another: GPU writes of a dead
// consumer may still land in it. It is unmapped when the consumer is quiet.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "ipc/lease_timelines.h"
#include "ipc/ledger_record.h"
#include "ipc/producer.h"
#include "ipc/protocol/note.h"
#include "ipc/shared_memory.h"
#include "ipc/views.h"

namespace limbo {

// What note.h and sweep.h call `Row`.
class Lease {
 public:
  // `scans_per_second` limits how many groups of this row are scanned, so that a broken consumer
  // cannot keep the producer busy. Throws kNoChannel when the memfd cannot be made.
  Lease(std::uint32_t number, const LeasePeer& peer, const Capacities& capacities,
        std::int64_t scans_per_second, std::shared_ptr<LeaseTimelines> timelines);

  // ---- the row's words
  [[nodiscard]] const RowView& view() const noexcept { return view_; }
  [[nodiscard]] SharedWord* lease_dirty_host() const noexcept { return view_.lease_dirty_host(); }
  [[nodiscard]] SharedWord* lease_dirty_gpu() const noexcept { return view_.lease_dirty_gpu(); }
  [[nodiscard]] SharedWord* group_dirty_host(std::uint32_t group) const noexcept {
    return view_.group_dirty_host(group);
  }
  [[nodiscard]] SharedWord* group_dirty_gpu(std::uint32_t group) const noexcept {
    return view_.group_dirty_gpu(group);
  }
  [[nodiscard]] SharedWord* claim(std::uint32_t slot) const noexcept { return view_.claim(slot); }
  [[nodiscard]] std::uint32_t groups() const noexcept { return view_.groups(); }

  // ---- what was seen
  [[nodiscard]] protocol::Seen& seen_lease() noexcept { return seen_lease_; }
  [[nodiscard]] protocol::Seen& seen_group(std::uint32_t group) noexcept {
    return groups_[group].seen;
  }
  [[nodiscard]] std::uint64_t& mirror(std::uint32_t slot) noexcept { return slots_[slot].mirror; }
  [[nodiscard]] bool has_mirrors(std::uint32_t group) const noexcept {
    return groups_[group].mirrors != 0;
  }
  [[nodiscard]] bool may_scan() noexcept;
  // Before out-of-memory the producer looks at everything, whatever it has looked at before.
  void grant_scans() noexcept { scans_left_ = scans_burst_; }

  void mirrored(std::uint32_t slot, ProducerClock::time_point now) noexcept;
  void unmirrored(std::uint32_t slot) noexcept;
  [[nodiscard]] std::uint64_t mirrors() const noexcept { return mirrors_; }
  // Calls visit(slot, export index, time when it was noted) for every mirror.
  template <class Visit>
  void for_each_mirror(Visit&& visit) const {
    for (std::uint32_t group = 0; group < view_.groups(); ++group) {
      if (groups_[group].mirrors == 0) continue;
      for (std::uint32_t i = 0; i < protocol::kGroupClaims; ++i) {
        const std::uint32_t slot = group * protocol::kGroupClaims + i;
        if (slots_[slot].mirror == 0) continue;
        visit(slot, protocol::decode_claim(slots_[slot].mirror).export_index, slots_[slot].noted);
      }
    }
  }

  // Whether the consumer marks this piece as mapped. The acquire pairs with the mark's release.
  [[nodiscard]] bool maps(std::uint32_t piece, std::uint64_t generation) const noexcept {
    const std::uint64_t word = view_.mapped(piece)->load(std::memory_order_acquire);
    return (word & ~kMarkOpen) == mark_word(generation, kMarkMapped);
  }
  // Whether it has opened it as well.
  [[nodiscard]] bool has_opened(std::uint32_t piece, std::uint64_t generation) const noexcept {
    return view_.mapped(piece)->load(std::memory_order_acquire) ==
           mark_word(generation, kMarkMapped | kMarkOpen);
  }

  // Whether it marks any of the first `pieces` pieces, in whatever generation.
  [[nodiscard]] bool maps_anything(std::uint32_t pieces) const noexcept {
    for (std::uint32_t piece = 0; piece < pieces; ++piece) {
      if ((view_.mapped(piece)->load(std::memory_order_acquire) & kMarkMapped) != 0) return true;
    }
    return false;
  }

  [[nodiscard]] std::uint32_t number() const noexcept { return number_; }
  [[nodiscard]] const LeasePeer& peer() const noexcept { return peer_; }
  [[nodiscard]] const SharedMemory& memory() const noexcept { return memory_; }
  [[nodiscard]] const std::shared_ptr<LeaseTimelines>& timelines() const noexcept {
    return timelines_;
  }

  bool gone = false;  // its process has ended: quarantine
  std::string why;    // what quarantine waits for; or that its GPU context is lost

 private:
  struct Group {
    protocol::Seen seen;
    std::uint32_t mirrors = 0;
  };
  struct Slot {
    std::uint64_t mirror;
    ProducerClock::time_point noted;
  };

  const std::uint32_t number_;
  const LeasePeer peer_;
  SharedMemory memory_;
  const std::shared_ptr<LeaseTimelines> timelines_;
  RowView view_;
  protocol::Seen seen_lease_;
  std::vector<Group> groups_;
  SparseArray<Slot> slots_;
  std::uint64_t mirrors_ = 0;
  const std::int64_t scans_per_second_;
  const std::int64_t scans_burst_;
  std::int64_t scans_left_;
  ProducerClock::time_point scans_counted_;
};

}  // namespace limbo
