// What the producer's tests share: a producer on a simulated device, and consumers that are played
// by calling the protocol's functions on their rows.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "ipc/fail_points.h"
#include "ipc/producer.h"
#include "ipc/protocol/release.h"
#include "ipc/views.h"
#include "tests/support/balance.h"
#include "tests/support/eventually.h"
#include "tests/unit/allocator_support.h"

namespace limbo::testing {

using protocol::ClaimState;
using protocol::ClaimVerdict;

inline Capacities small_tables() {
  return {.exports = 64, .pieces = 16, .claims = 1024, .timelines = 16};
}

// A request to send on what `slot` holds.
inline ForwardRequest forward_request(const ExportTicket& held, std::uint32_t slot) {
  ForwardRequest request;
  request.slot = slot;
  request.held = {held.export_index, held.generation};
  request.offset_bytes = held.offset_bytes;
  request.size_bytes = held.size_bytes;
  request.time_limit = std::chrono::hours(1);
  return request;
}

// Whether a forwarder has died, or lost its context, before one of the numbers came that it is behind.
inline bool ended_early(const OwnOpen& own) {
  return own.upstream_lost ||
         std::any_of(own.behind.begin(), own.behind.end(), [](const ForwardersNumber& number) {
           return number.timelines->ended_before(number.point.index, number.point.number);
         });
}

// One consumer. Uses the producer's own mapping of its row (a thread sanitizer cannot follow two).
class PlayedConsumer {
 public:
  PlayedConsumer(Producer& producer, std::int64_t pid = 4711)
      : PlayedConsumer(producer, LeasePeer{{.incarnation = next_incarnation(), .pid = pid}}) {}
  PlayedConsumer(Producer& producer, const LeasePeer& peer)
      : producer_(producer),
        incarnation_(peer.identity.incarnation),
        grant_(producer.add_lease(peer)),
        row_(producer.row_mapping(grant_.lease_number), grant_.capacities),
        ledger_(producer.ledger_mapping(), grant_.capacities) {}

  // In the next slot that is free. `*slot` is where.
  ClaimVerdict claim(const ExportTicket& ticket, std::uint32_t* slot = nullptr) {
    while (!protocol::slot_is_free(memory_, row_, next_slot_)) advance();
    const std::uint32_t taken = next_slot_;
    advance();
    const protocol::ClaimTarget target{ticket.export_index, ticket.generation};
    const ClaimVerdict verdict =
        protocol::claim(memory_, row_, taken, ledger_.export_word(ticket.export_index), target,
                        [] { return false; });
    if (verdict == ClaimVerdict::kStands) held_.emplace_back(taken, target);
    if (slot != nullptr) *slot = taken;
    return verdict;
  }
  bool holds(const ExportTicket& ticket) const {
    for (const auto& [slot, target] : held_) {
      if (target == protocol::ClaimTarget{ticket.export_index, ticket.generation}) return true;
    }
    return false;
  }
  // The oldest claim on it, by the host.
  void release(const ExportTicket& ticket) {
    const auto [slot, target] = take_held(ticket);
    protocol::release_by_host(memory_, row_, slot, target);
  }
  void release_all() {
    for (const auto& [slot, target] : std::exchange(held_, {})) {
      protocol::release_by_host(memory_, row_, slot, target);
    }
  }
  // Behind what `stream` has queued. The row must be registered.
  void release_on(Device& device, StreamRef stream, const ExportTicket& ticket) {
    const auto [slot, target] = take_held(ticket);
    const protocol::Release release{slot, target};
    std::vector<WordWrite> writes;
    const std::size_t taken = protocol::write_release_batch(
        row_, std::span(&release, 1), Device::kMaxBatchOperations, [this] { return ++number_; },
        [&](SharedWord* word, std::uint64_t value) {
          writes.push_back({reinterpret_cast<std::uint64_t*>(word), value});
        });
    ASSERT_EQ(taken, 1U);
    device.write_words(stream, writes);
  }
  HostMemory host_memory() const {
    return {row_.lease_dirty_host(), row_layout(grant_.capacities).gpu_end, grant_.row_fd, true};
  }

  protocol::ExportFields fields(const ExportTicket& ticket) {
    return protocol::read_fields(memory_, ExportView(&ledger_.export_row(ticket.export_index)));
  }
  void mark_opening(const ExportTicket& ticket) {
    row_.mapped(ticket.piece_index)
        ->store(mark_word(ticket.piece_generation, kMarkMapped), std::memory_order_release);
  }
  void mark_mapped(const ExportTicket& ticket, bool mapped = true) {
    row_.mapped(ticket.piece_index)
        ->store(mark_word(ticket.piece_generation, mapped ? kMarkMapped | kMarkOpen : 0),
                std::memory_order_release);
  }

  [[nodiscard]] std::uint32_t lease() const { return grant_.lease_number; }
  [[nodiscard]] const Incarnation& incarnation() const { return incarnation_; }
  [[nodiscard]] const LeaseGrant& grant() const { return grant_; }
  [[nodiscard]] const RowView& row() const { return row_; }
  [[nodiscard]] const LedgerView& ledger() const { return ledger_; }
  [[nodiscard]] ClaimState state(std::uint32_t slot) const {
    return protocol::decode_claim(row_.claim(slot)->load()).state;
  }

  // The process ends and its GPU work with it. The row is gone afterwards.
  void die() {
    producer_.lease_gone(lease(), "its GPU work may still run");
    producer_.lease_quiet(lease());
    held_.clear();
  }

 private:
  static Incarnation next_incarnation() {
    static std::atomic<std::uint64_t> made{0};
    return {7, ++made};
  }
  using HeldClaim = std::pair<std::uint32_t, protocol::ClaimTarget>;

  void advance() { next_slot_ = (next_slot_ + 1) % row_.claims(); }
  HeldClaim take_held(const ExportTicket& ticket) {
    for (std::size_t i = 0; i < held_.size(); ++i) {
      if (held_[i].second != protocol::ClaimTarget{ticket.export_index, ticket.generation})
        continue;
      const HeldClaim found = held_[i];
      held_.erase(held_.begin() + static_cast<std::ptrdiff_t>(i));
      return found;
    }
    ADD_FAILURE() << "not held";
    return {};
  }

  protocol::StdMemory memory_;
  Producer& producer_;
  const Incarnation incarnation_;
  LeaseGrant grant_;
  RowView row_;
  LedgerView ledger_;
  std::uint32_t next_slot_ = 0;
  std::uint64_t number_ = 0;
  std::vector<HeldClaim> held_;
};

// At the end everything is over: no export is open, no block in limbo, nothing stays behind.
class ProducerTest : public BalancedTest {
 protected:
  void SetUp() override {
    BalancedTest::SetUp();
    sim_ = make_sim();
    allocator_ = std::make_unique<Allocator>(*sim_);
    make_producer(small_tables());
  }
  void make_producer(const Capacities& capacities, std::int64_t scans_per_second = 200'000) {
    if (producer_ != nullptr) allocator_->set_lender(nullptr);
    producer_ = std::make_unique<Producer>(*sim_, *allocator_, Incarnation{1, 2}, capacities,
                                           scans_per_second);
    allocator_->set_lender(producer_.get());
  }
  void TearDown() override {
    set_fail_points("");
    sim_->faults().clear();
    sim_->wait_until_idle();
    producer_->check_invariants();
    for (int i = 0; i < 3; ++i) producer_->collect();
    EXPECT_EQ(stats().exports_open, 0U);
    EXPECT_EQ(stats().in_flight, 0U);
    EXPECT_EQ(limbo_blocks(), 0);
    EXPECT_EQ(allocator_->stats(0).allocated_bytes[kAllSizes].current, 0);
    EXPECT_EQ(allocator_->stats(0).active_bytes[kAllSizes].current, 0);
    allocator_->check_invariants();
    allocator_->set_lender(nullptr);
    producer_.reset();
    allocator_->empty_cache();
    EXPECT_EQ(sim_->balance().allocated, 0U);
    allocator_.reset();
    sim_.reset();
    BalancedTest::TearDown();
  }

  [[nodiscard]] std::byte* allocate(std::size_t size_bytes = 4096, StreamRef on = {}) {
    return static_cast<std::byte*>(allocator_->allocate(size_bytes, on));
  }
  [[nodiscard]] ExportTicket share(const void* data, std::size_t size_bytes = 4096) {
    return producer_->share(data, size_bytes, {});
  }
  [[nodiscard]] ExportTicket share_for(const void* data, std::chrono::milliseconds limit) {
    ShareOptions options;
    options.time_limit = limit;
    return producer_->share(data, 4096, options);
  }
  // A new block that its owner has freed, so that only the consumer's claim keeps it.
  ExportTicket left_to(PlayedConsumer& consumer) {
    std::byte* data = allocate();
    const ExportTicket ticket = share(data);
    EXPECT_EQ(consumer.claim(ticket), ClaimVerdict::kStands);
    allocator_->free(data);
    return ticket;
  }
  [[nodiscard]] SharingStats stats() {
    SharingStats stats;
    producer_->add_stats(stats);
    return stats;
  }
  [[nodiscard]] std::int64_t limbo_blocks() { return allocator_->stats(0).limbo_blocks; }
  [[nodiscard]] protocol::ExportWord word(const ExportTicket& ticket) {
    const LedgerView ledger(producer_->ledger_mapping(), small_tables());
    return protocol::decode_export(ledger.export_word(ticket.export_index)->load());
  }

  std::unique_ptr<SimDevice> sim_;
  std::unique_ptr<Allocator> allocator_;
  std::unique_ptr<Producer> producer_;
};

}  // namespace limbo::testing
