// Leases: declines, death, quarantine and the sweep, broken rows, pieces, reports.
#include <random>
#include <thread>

#include "allocator/options.h"
#include "ipc/producer_impl.h"
#include "tests/support/shared_words.h"
#include "tests/unit/producer_support.h"

namespace limbo {
namespace {

using namespace limbo::testing;
using protocol::ExportState;
using std::chrono::milliseconds;
using std::chrono::seconds;

class ProducerLeases : public ProducerTest {
 protected:
  // So many free pieces that `consumer` has mapped and holds nothing of.
  std::vector<ExportTicket> lend_mapped(PlayedConsumer& consumer, int count, std::size_t size) {
    std::vector<ExportTicket> tickets;
    std::vector<std::byte*> blocks;
    for (int index = 0; index < count; ++index) {
      blocks.push_back(allocate(size));
      piece_ids_.push_back(allocator_->find(blocks.back())->piece_id);
      tickets.push_back(share(blocks.back()));
      EXPECT_EQ(consumer.claim(tickets.back()), ClaimVerdict::kStands);
      consumer.mark_mapped(tickets.back());
    }
    consumer.release_all();
    for (std::byte* block : blocks) allocator_->free(block);
    producer_->collect();
    return tickets;
  }

  std::vector<std::uint64_t> piece_ids_;
};

TEST_F(ProducerLeases, RowsAndNumbersAreNeverUsedAgain) {
  PlayedConsumer first(*producer_);
  const std::uint32_t number = first.lease();
  const int fd = first.grant().row_fd;
  PlayedConsumer second(*producer_);
  EXPECT_NE(second.grant().row_fd, fd);
  first.die();
  PlayedConsumer third(*producer_);
  EXPECT_GT(third.lease(), number);
  EXPECT_EQ(producer_->row_mapping(number), nullptr);
  EXPECT_EQ(stats().leases_connected, 2U);
  EXPECT_EQ(stats().leases_swept, 1U);
}

// Timelines are named by them, plus one: the last one would name the producer, the next the first.
TEST_F(ProducerLeases, WhenAllNumbersAreGivenOutNoneIsGivenAgain) {
  constexpr std::uint32_t kLast = 0xffff'fffe;
  std::atomic<std::uint64_t> next{kLast};
  EXPECT_EQ(take_lease_number(next), kLast);
  for (int i = 0; i < 3; ++i) EXPECT_ERROR((void)take_lease_number(next), kLedgerFull);
}

TEST_F(ProducerLeases, QuarantineHoldsOnAndTheSweepLetsGo) {
  PlayedConsumer consumer(*producer_, 99);
  left_to(consumer);
  producer_->lease_gone(consumer.lease(), "a fork child of it is alive");
  producer_->lease_gone(consumer.lease(), "a fork child of it is alive");
  producer_->collect();
  EXPECT_FALSE(producer_->collect_thoroughly(0, milliseconds(100)));
  EXPECT_EQ(limbo_blocks(), 1);
  const std::vector<Holder> holders = producer_->holders();
  ASSERT_EQ(holders.size(), 1U);
  EXPECT_EQ(holders[0].pid, 99);
  EXPECT_EQ(holders[0].state, Holder::State::kQuarantine);
  EXPECT_EQ(holders[0].why, "a fork child of it is alive");
  EXPECT_EQ(holders[0].claims, 1U);
  EXPECT_EQ(holders[0].bytes, 4096U);
  EXPECT_EQ(stats().leases_quarantined, 1U);
  producer_->lease_quiet(consumer.lease());
  EXPECT_EQ(limbo_blocks(), 0);
  producer_->lease_quiet(consumer.lease());  // once
  EXPECT_EQ(stats().leases_swept, 1U);
  EXPECT_EQ(stats().claims_swept, 1U);
  EXPECT_TRUE(producer_->holders().empty());
}

// A consumer that dies at any step of claiming or releasing: everything comes back, once.
TEST_F(ProducerLeases, DeathAtEveryStep) {
  for (int step = 0; step < 7; ++step) {
    PlayedConsumer consumer(*producer_);
    const RowView& row = consumer.row();
    std::byte* data = allocate();
    const ExportTicket ticket = share(data);
    const protocol::ClaimTarget target{ticket.export_index, ticket.generation};
    const auto held = protocol::claim_bits(target, ClaimState::kHeld);
    const auto released = protocol::claim_bits(target, ClaimState::kReleased);
    if (step >= 1) row.claim(3)->store(held);
    if (step >= 2) row.group_dirty_host(0)->fetch_add(1);
    if (step >= 3) row.lease_dirty_host()->fetch_add(1);
    if (step >= 4) producer_->collect();
    if (step >= 5) row.claim(3)->store(released);
    if (step >= 6) row.lease_dirty_host()->fetch_add(1);
    allocator_->free(data);
    producer_->collect();
    consumer.die();
    producer_->check_invariants();
    // Never claimed: it is still promised to somebody.
    EXPECT_EQ(stats().in_flight, step == 0 ? 1U : 0U) << step;
    if (step == 0) producer_->withdraw(ticket.export_index, ticket.generation);
    EXPECT_EQ(limbo_blocks(), 0) << step;
    EXPECT_EQ(stats().exports_open, 0U) << step;
  }
}

TEST_F(ProducerLeases, SweptClaimIsAClaimAndOthersKeepTheirs) {
  PlayedConsumer dead(*producer_, 1);
  PlayedConsumer alive(*producer_, 2);
  std::byte* data = allocate();
  const ExportTicket ticket = share(data);
  ASSERT_EQ(dead.claim(ticket), ClaimVerdict::kStands);
  ASSERT_EQ(alive.claim(ticket), ClaimVerdict::kStands);
  allocator_->free(data);
  dead.die();
  EXPECT_EQ(limbo_blocks(), 1);
  EXPECT_EQ(stats().held_claims, 1U);
  EXPECT_EQ(stats().in_flight, 0U);
  alive.release_all();
  EXPECT_TRUE(producer_->collect());
}

// Trace 12, as far as a producer sees it: a GPU write that lands late, on a slot that is FREE.
TEST_F(ProducerLeases, LateReleaseOfAnOldClaimFreesNothing) {
  PlayedConsumer consumer(*producer_);
  PlayedConsumer other(*producer_);
  std::byte* data = allocate();
  const ExportTicket ticket = share(data);
  std::uint32_t slot = 0;
  ASSERT_EQ(consumer.claim(ticket, &slot), ClaimVerdict::kStands);
  ASSERT_EQ(other.claim(ticket), ClaimVerdict::kStands);
  consumer.release(ticket);
  producer_->collect();
  allocator_->free(data);
  protocol::StdMemory memory;
  protocol::release_by_host(memory, consumer.row(), slot, {ticket.export_index, ticket.generation});
  producer_->collect();
  EXPECT_EQ(consumer.state(slot), ClaimState::kFree);
  EXPECT_EQ(limbo_blocks(), 1);
  EXPECT_EQ(stats().held_claims, 1U);
  other.release_all();
}

// Trace 21: one thread of a consumer claims, another declines: the promise is used up once.
TEST_F(ProducerLeases, DeclineTakesOffOneAtMost) {
  PlayedConsumer consumer(*producer_);
  std::byte* data = allocate();
  const ExportTicket one = share(data);
  const ExportTicket two = share(data);
  ASSERT_EQ(consumer.claim(one), ClaimVerdict::kStands);
  producer_->decline(consumer.lease(), one.export_index, one.generation);
  producer_->decline(consumer.lease(), one.export_index, one.generation);
  producer_->check_invariants();
  EXPECT_EQ(stats().in_flight, 1U);
  producer_->decline(consumer.lease(), two.export_index, two.generation + 1);
  producer_->decline(consumer.lease(), 1 << 30, 1);
  producer_->decline(12345, two.export_index, two.generation);
  EXPECT_EQ(stats().in_flight, 1U);
  consumer.release_all();
  allocator_->free(data);
  producer_->collect();
  EXPECT_EQ(limbo_blocks(), 1);
  producer_->decline(consumer.lease(), two.export_index, two.generation);
  EXPECT_EQ(limbo_blocks(), 0);
}

TEST_F(ProducerLeases, HalfFullRowIsNotedAtOnce) {
  PlayedConsumer consumer(*producer_);
  std::byte* data = allocate();
  for (int i = 0; i < 600; ++i) {
    const ExportTicket ticket = share(data);
    ASSERT_EQ(consumer.claim(ticket), ClaimVerdict::kStands);
    consumer.release(ticket);
    if (i % 100 == 0) producer_->row_half_full(consumer.lease());
  }
  producer_->row_half_full(consumer.lease());
  producer_->row_half_full(777);  // none
  for (std::uint32_t slot = 0; slot < small_tables().claims; ++slot) {
    ASSERT_EQ(consumer.state(slot), ClaimState::kFree) << slot;
  }
  allocator_->free(data);
}

// A broken consumer writes whatever it likes into its row.
TEST_F(ProducerLeases, HostileRowFreesNothingThatOthersHold) {
  PlayedConsumer honest(*producer_, 1);
  PlayedConsumer hostile(*producer_, 2);
  std::vector<std::byte*> blocks;
  std::vector<ExportTicket> tickets;
  for (int i = 0; i < 8; ++i) {
    blocks.push_back(allocate());
    tickets.push_back(share(blocks.back()));
    ASSERT_EQ(honest.claim(tickets.back()), ClaimVerdict::kStands);
  }
  producer_->collect();
  for (std::byte* block : blocks) allocator_->free(block);
  std::mt19937_64 random(1'129);
  const RowView& row = hostile.row();
  for (int round = 0; round < 200; ++round) {
    for (int i = 0; i < 40; ++i) {
      const auto slot = static_cast<std::uint32_t>(random() % row.claims());
      const ExportTicket& ticket = tickets[random() % tickets.size()];
      const protocol::ClaimTarget target{ticket.export_index + (random() % 4 == 0 ? 60U : 0U),
                                         ticket.generation + random() % 2};
      row.claim(slot)->store(
          random() % 3 == 0 ? random()
                            : protocol::claim_bits(target, static_cast<ClaimState>(random() % 4)));
    }
    row.group_dirty_gpu(static_cast<std::uint32_t>(random() % 2))->store(random());
    row.lease_dirty_gpu()->store(random());
    row.mapped(static_cast<std::uint32_t>(random() % row.pieces()))->store(random());
    producer_->collect();
    if (round % 50 == 0) producer_->check_invariants();
  }
  producer_->collect_thoroughly(0, seconds(1));
  producer_->check_invariants();
  for (const ExportTicket& ticket : tickets) EXPECT_NE(word(ticket).state, ExportState::kFree);
  EXPECT_EQ(limbo_blocks(), 8);
  hostile.die();
  EXPECT_EQ(limbo_blocks(), 8);
  EXPECT_EQ(stats().held_claims, 8U);
  honest.release_all();
  EXPECT_TRUE(producer_->collect());
}

// One row can make the producer scan only so often; meanwhile nothing closes unseen.
TEST_F(ProducerLeases, RowWithoutScansLeftHoldsClosingsBack) {
  make_producer(small_tables(), 1);
  PlayedConsumer busy(*producer_, 1);
  PlayedConsumer other(*producer_, 2);
  std::byte* data = allocate();
  const ExportTicket ticket = share(data);
  ASSERT_EQ(other.claim(ticket), ClaimVerdict::kStands);
  other.release(ticket);
  allocator_->free(data);
  busy.row().group_dirty_host(0)->fetch_add(1);
  busy.row().group_dirty_host(1)->fetch_add(1);
  busy.row().lease_dirty_host()->fetch_add(1);
  producer_->collect();  // one scan for each row; `busy` needs two
  EXPECT_EQ(word(ticket).state, ExportState::kOpen);
  EXPECT_EQ(limbo_blocks(), 1);
  producer_->check_invariants();
  EXPECT_TRUE(producer_->collect_thoroughly(0, seconds(1)));
  EXPECT_EQ(limbo_blocks(), 0);
}

// Leases are added by the reaper, which completes waits of the dead: it may not wait for the device
// itself, and undoing a pin can.
TEST_F(ProducerLeases, AddingALeaseLeavesUnpinsToTheNextHolder) {
  PlayedConsumer consumer(*producer_);
  std::byte* data = allocate();
  const ExportTicket ticket = share(data);
  ASSERT_EQ(consumer.claim(ticket), ClaimVerdict::kStands);
  consumer.release(ticket);
  allocator_->free(data);
  set_fail_points("collect.before_unlock=delay:200@1");
  LeaseGrant grant;
  std::thread reaper([&] { grant = producer_->add_lease({{.incarnation = {7, 8}, .pid = 4712}}); });
  ASSERT_TRUE(eventually([&] { return fail_point_passed("collect.before_unlock") == 1; }));
  EXPECT_FALSE(producer_->collect());  // asks the reaper, which runs the pass
  reaper.join();
  set_fail_points("");
  EXPECT_EQ(word(ticket).state, ExportState::kFree);
  EXPECT_EQ(limbo_blocks(), 1);
  EXPECT_TRUE(producer_->collect_thoroughly(0, seconds(5)));  // nothing is out of sight
  EXPECT_EQ(limbo_blocks(), 0);
  producer_->lease_quiet(grant.lease_number);
}

// ---- pieces ---------------------------------------------------------------------------------

// Trace 10, as far as a producer sees it: a piece goes back only when no lease marks it.
TEST_F(ProducerLeases, PieceIsKeptWhileAnybodyMapsIt) {
  PlayedConsumer consumer(*producer_);
  std::byte* data = allocate(16 << 20);
  const std::uint64_t piece_id = allocator_->find(data)->piece_id;
  EXPECT_TRUE(producer_->may_return_piece(piece_id));  // never lent
  const ExportTicket ticket = share(data);
  ASSERT_EQ(consumer.claim(ticket), ClaimVerdict::kStands);
  consumer.mark_mapped(ticket);
  consumer.release(ticket);
  allocator_->free(data);
  producer_->collect();
  allocator_->empty_cache();
  EXPECT_EQ(sim_->balance().allocated, 1U);
  const PieceRow& piece = consumer.ledger().piece(ticket.piece_index);
  EXPECT_EQ(piece.word.load() & kPieceUnmapWanted, kPieceUnmapWanted);
  EXPECT_FALSE(producer_->wait_for_unmapped_pieces(0, milliseconds(0)));
  EXPECT_FALSE(producer_->wait_for_unmapped_pieces(1, seconds(100)));  // none flagged there
  // Sharing a block of it takes the flag back.
  data = allocate(16 << 20);
  const ExportTicket again = share(data);
  EXPECT_EQ(again.piece_index, ticket.piece_index);
  EXPECT_EQ(again.piece_generation, ticket.piece_generation);
  EXPECT_EQ(piece.word.load() & kPieceUnmapWanted, 0U);
  ASSERT_EQ(consumer.claim(again), ClaimVerdict::kStands);
  consumer.release(again);
  allocator_->free(data);
  producer_->collect();
  allocator_->empty_cache();
  EXPECT_EQ(sim_->balance().allocated, 1U);
  // Unmapped, it goes back, and its row may serve another piece of the next generation.
  consumer.mark_mapped(ticket, false);
  EXPECT_TRUE(producer_->wait_for_unmapped_pieces(0, seconds(5)));
  allocator_->empty_cache();
  EXPECT_EQ(sim_->balance().allocated, 0U);
  EXPECT_EQ(piece.word.load() & kPieceInUse, 0U);
  EXPECT_GT(piece_generation(piece.word.load()), ticket.piece_generation);
  data = allocate(16 << 20);
  const ExportTicket third = share(data);
  EXPECT_EQ(third.piece_index, ticket.piece_index);
  EXPECT_GT(third.piece_generation, ticket.piece_generation);
  // A mark of the old generation, or a scribbled one, means nothing.
  consumer.mark_mapped(ticket);
  producer_->withdraw(third.export_index, third.generation);
  allocator_->free(data);
  producer_->collect();
  allocator_->empty_cache();
  EXPECT_EQ(sim_->balance().allocated, 0U);
}

TEST_F(ProducerLeases, PieceThatADeadConsumerMappedGoesBackAfterTheSweep) {
  PlayedConsumer consumer(*producer_);
  std::byte* data = allocate(16 << 20);
  const ExportTicket ticket = share(data);
  ASSERT_EQ(consumer.claim(ticket), ClaimVerdict::kStands);
  consumer.mark_mapped(ticket);
  producer_->lease_gone(consumer.lease(), "its GPU work may still run");
  allocator_->free(data);
  producer_->collect();
  allocator_->empty_cache();
  EXPECT_EQ(sim_->balance().allocated, 1U);
  producer_->lease_quiet(consumer.lease());
  allocator_->empty_cache();
  EXPECT_EQ(sim_->balance().allocated, 0U);
}

// An allocation that needs several pieces waits for all of them.
TEST_F(ProducerLeases, AllocationWaitsForEveryPieceThatItNeeds) {
  PlayedConsumer consumer(*producer_);
  const std::vector<ExportTicket> tickets = lend_mapped(consumer, 3, 512 << 20);
  std::thread unmapper([&] {
    for (const ExportTicket& ticket : tickets) {
      std::this_thread::sleep_for(milliseconds(50));
      consumer.mark_mapped(ticket, false);
    }
  });
  std::byte* data = nullptr;
  EXPECT_NO_THROW(data = allocate(std::size_t{1600} << 20));
  unmapper.join();
  if (data != nullptr) allocator_->free(data);
}

// A piece that was wanted once, and is used again by its owner alone, is not what others wait for.
TEST_F(ProducerLeases, AllocationWaitsForWhatIsMappedAndNotForWhatIsInUse) {
  PlayedConsumer consumer(*producer_);
  const std::vector<ExportTicket> tickets = lend_mapped(consumer, 2, 512 << 20);
  allocator_->empty_cache();  // both are wanted now
  std::byte* used = allocate(512 << 20);
  const std::size_t first = allocator_->find(used)->piece_id == piece_ids_[0] ? 0 : 1;
  consumer.mark_mapped(tickets[first], false);
  std::thread unmapper([&] {
    std::this_thread::sleep_for(milliseconds(200));
    consumer.mark_mapped(tickets[1 - first], false);
  });
  std::byte* data = nullptr;
  EXPECT_NO_THROW(data = allocate(std::size_t{1100} << 20));
  unmapper.join();
  if (data != nullptr) allocator_->free(data);
  allocator_->free(used);
}

// Trace 11: a producer may exit only when its holders have mapped what they hold.
TEST_F(ProducerLeases, DrainedMeansClaimedMappedAndWritten) {
  PlayedConsumer consumer(*producer_);
  EXPECT_TRUE(producer_->drained());
  std::byte* data = allocate();
  SharedWords gate(*sim_);
  sim_->wait_word({0, nullptr}, gate.word(0), 1);
  const ExportTicket ticket = share(data);
  EXPECT_FALSE(producer_->drained());  // in flight
  ASSERT_EQ(consumer.claim(ticket), ClaimVerdict::kStands);
  EXPECT_FALSE(producer_->drained());  // claimed, and its first open would fail
  consumer.mark_opening(ticket);
  EXPECT_FALSE(producer_->drained());  // marked, and it would fail still
  consumer.mark_mapped(ticket);
  EXPECT_FALSE(producer_->drained());  // the work before the send has not been done
  gate.store(0, 1);
  EXPECT_TRUE(eventually([&] { return producer_->drained(); }));
  consumer.mark_mapped(ticket, false);
  EXPECT_FALSE(producer_->drained());
  producer_->lease_gone(consumer.lease(), "");
  EXPECT_TRUE(producer_->drained());  // who has ended opens nothing any more
  producer_->lease_quiet(consumer.lease());
  allocator_->free(data);
}

TEST_F(ProducerLeases, FailedLeaseIsNotListed) {
  set_fail_points("lease.before_listed=error");
  EXPECT_ERROR((void)producer_->add_lease({}), kInternal);
  EXPECT_EQ(stats().leases_connected, 0U);
}

}  // namespace
}  // namespace limbo
