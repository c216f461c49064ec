// Tables that are full, down to one slot: what is closed to make room, what the error says, and that
// everything works afterwards.
#include <sys/resource.h>

#include <atomic>
#include <deque>
#include <optional>
#include <thread>

#include "ipc/fail_point_hooks.h"
#include "tests/unit/producer_support.h"

namespace limbo {
namespace {

using namespace limbo::testing;
using protocol::ExportState;
using std::chrono::milliseconds;

class FullTables : public ProducerTest {
 protected:
  // The text of the error that a share without room gives.
  std::string refusal(const void* data, const ShareOptions& options = {}) {
    const SharingStats before = stats();
    std::string text;
    try {
      (void)producer_->share(data, 4096, options);
      ADD_FAILURE() << "there was room";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kLedgerFull) << error.what();
      text = error.what();
    }
    producer_->check_invariants();
    EXPECT_EQ(stats().exports_open, before.exports_open);
    EXPECT_EQ(stats().in_flight, before.in_flight);
    return text;
  }
  ExportTicket open_and_release(const void* data, PlayedConsumer& consumer) {
    const ExportTicket ticket = share(data);
    EXPECT_EQ(consumer.claim(ticket), ClaimVerdict::kStands);
    consumer.release(ticket);
    return ticket;
  }
  protocol::ExportWord word_of(const PlayedConsumer& consumer, const ExportTicket& ticket) {
    return protocol::decode_export(consumer.ledger().export_word(ticket.export_index)->load());
  }
};

// ---- exports ----------------------------------------------------------------------------------

TEST_F(FullTables, OneExportIsEnoughForMessagesOneAfterAnother) {
  make_producer({.exports = 1, .pieces = 1, .claims = 512, .timelines = 1});
  PlayedConsumer consumer(*producer_);
  std::byte* data = allocate();
  ExportTicket last = open_and_release(data, consumer);
  for (int i = 0; i < 20; ++i) {
    const ExportTicket next = open_and_release(data, consumer);  // the idle one makes room
    EXPECT_EQ(next.generation, last.generation + 1);
    EXPECT_EQ(consumer.claim(last), ClaimVerdict::kGone);
    last = next;
  }
  allocator_->free(data);
}

TEST_F(FullTables, TheOnlyExportIsNotTakenFromWhoWasPromisedItOrHoldsIt) {
  make_producer({.exports = 1, .pieces = 1, .claims = 512, .timelines = 1});
  PlayedConsumer consumer(*producer_);
  std::byte* data = allocate();
  const ExportTicket only = share(data);
  EXPECT_TRUE(contains(refusal(data), "All 1 exports"));
  ASSERT_EQ(consumer.claim(only), ClaimVerdict::kStands);
  producer_->collect();
  const std::string text = refusal(data);
  EXPECT_TRUE(contains(text, "ledger_exports")) << text;
  EXPECT_TRUE(consumer.holds(only));
  EXPECT_EQ(word_of(consumer, only).state, ExportState::kOpen);
  consumer.release(only);
  const ExportTicket next = share(data);
  EXPECT_EQ(next.generation, only.generation + 1);
  EXPECT_TRUE(producer_->withdraw(next.export_index, next.generation));
  allocator_->free(data);
}

// Of four, two may stay idle: half of the table.
TEST_F(FullTables, TheLongestIdleIsClosedFirstAndOnlyPastTheHalf) {
  make_producer({.exports = 4, .pieces = 1, .claims = 512, .timelines = 1});
  PlayedConsumer consumer(*producer_);
  std::byte* data = allocate();
  std::vector<ExportTicket> idle;
  for (int i = 0; i < 2; ++i) {
    idle.push_back(open_and_release(data, consumer));
    producer_->collect();
  }
  for (const ExportTicket& ticket : idle) {
    EXPECT_EQ(word_of(consumer, ticket).state, ExportState::kOpen);
  }
  const ExportTicket third = share(data);
  EXPECT_EQ(word_of(consumer, idle[0]).state, ExportState::kFree);
  EXPECT_EQ(word_of(consumer, idle[1]).state, ExportState::kOpen);
  const ExportTicket fourth = share(data);
  EXPECT_EQ(word_of(consumer, idle[1]).state, ExportState::kFree);
  for (const ExportTicket& promised : {third, fourth}) {
    EXPECT_EQ(consumer.claim(promised), ClaimVerdict::kStands);
  }
  consumer.release_all();
  allocator_->free(data);
}

// The slots are over, and another thread is still unpinning their blocks.
TEST_F(FullTables, ASenderWaitsForSlotsThatAreBeingGivenBack) {
  make_producer({.exports = 1, .pieces = 1, .claims = 512, .timelines = 1});
  PlayedConsumer consumer(*producer_);
  // Whether it was given one. On a busy machine the other thread may be late: then not.
  const auto sends_meanwhile = [&] {
    std::byte* freed = allocate();
    (void)open_and_release(freed, consumer);
    std::byte* data = allocate();
    allocator_->free(freed);
    std::atomic<bool> unpinning{false};
    std::atomic<bool> waited{false};
    at_fail_point("collect.before_unpin", [&] {
      unpinning = true;
      EXPECT_TRUE(eventually([&] { return waited.load(); }));
    });
    std::thread collector([&] { producer_->collect(); });
    EXPECT_TRUE(eventually([&] { return unpinning.load(); }));
    // The sender finds no slot, looks thoroughly, and waits for the collector.
    at_fail_point("collect.after_note", [&] { waited = true; });
    std::optional<ExportTicket> next;
    try {
      next = producer_->share(data, 4096, {});
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kLedgerFull) << error.what();
    }
    collector.join();
    if (next) {
      EXPECT_TRUE(producer_->withdraw(next->export_index, next->generation));
    }
    allocator_->free(data);
    producer_->collect();
    return next.has_value();
  };
  EXPECT_TRUE(eventually(sends_meanwhile));
}

// ---- pieces -----------------------------------------------------------------------------------

TEST_F(FullTables, ARowOfAPieceIsFreeAgainWhenItsMemoryHasGoneBack) {
  make_producer({.exports = 8, .pieces = 1, .claims = 512, .timelines = 1});
  PlayedConsumer consumer(*producer_);
  std::byte* first = allocate(16 << 20);
  std::byte* second = allocate(32 << 20);
  const ExportTicket ticket = open_and_release(first, consumer);
  const std::string text = refusal(second);
  EXPECT_TRUE(contains(text, "ledger_pieces")) << text;
  // What is lent already can be lent again.
  const ExportTicket again = open_and_release(first, consumer);
  EXPECT_EQ(again.piece_index, ticket.piece_index);
  allocator_->free(first);
  producer_->collect();
  (void)refusal(second);  // its memory is kept for the next allocation
  allocator_->empty_cache();
  const ExportTicket other = open_and_release(second, consumer);
  EXPECT_EQ(other.piece_index, ticket.piece_index);
  EXPECT_GT(other.piece_generation, ticket.piece_generation);
  EXPECT_EQ(consumer.claim(ticket), ClaimVerdict::kGone);
  allocator_->free(second);
}

// ---- timelines --------------------------------------------------------------------------------

TEST_F(FullTables, ATimelineIsGivenToAnotherStreamWhenItsNumbersHaveLanded) {
  make_producer({.exports = 8, .pieces = 4, .claims = 512, .timelines = 2});
  std::byte* data = allocate();
  StreamRef streams[3];
  ShareOptions from[3];
  for (int i = 0; i < 3; ++i) {
    streams[i] = {0, sim_->create_stream(0)};
    from[i].current_stream = streams[i];
  }
  const SimHold holds[] = {sim_->hold_stream(streams[0]), sim_->hold_stream(streams[1])};
  // This one's stream and the block's home stream.
  const ExportTicket slow = producer_->share(data, 4096, from[0]);
  sim_->synchronize_stream({});
  const ExportTicket quick = share(data);
  sim_->synchronize_stream({});
  // This one takes the home stream's, whose number has landed; and then there is none for that.
  const std::string text = refusal(data, from[1]);
  EXPECT_TRUE(contains(text, "ledger_timelines")) << text;
  for (const SimHold hold : holds) sim_->release_hold(hold);
  sim_->synchronize_stream(streams[1]);
  sim_->synchronize_stream(streams[0]);
  const ExportTicket later = producer_->share(data, 4096, from[2]);
  EXPECT_NE(later.points[0].index, later.points[1].index);
  sim_->wait_until_idle();
  for (const ExportTicket& ticket : {slow, quick, later}) {
    EXPECT_TRUE(producer_->withdraw(ticket.export_index, ticket.generation));
  }
  allocator_->free(data);
  for (const StreamRef stream : streams) sim_->destroy_stream(stream);
}

// ---- leases -----------------------------------------------------------------------------------

TEST_F(FullTables, ManyConsumersAtOneTime) {
  constexpr int kConsumers = 200;
  std::byte* data = allocate();
  std::deque<PlayedConsumer> consumers;
  const ExportTicket ticket = share(data);
  for (int i = 0; i < kConsumers; ++i) {
    consumers.emplace_back(*producer_, 1000 + i);
    ASSERT_EQ(consumers.back().claim(ticket), ClaimVerdict::kStands);
  }
  allocator_->free(data);
  producer_->collect();
  EXPECT_EQ(stats().held_claims, static_cast<std::uint64_t>(kConsumers));
  EXPECT_EQ(producer_->holders().size(), static_cast<std::size_t>(kConsumers));
  for (int i = 0; i < kConsumers; ++i) {
    EXPECT_EQ(limbo_blocks(), 1);
    if (i % 2 == 0) {
      consumers[static_cast<std::size_t>(i)].release_all();
    } else {
      consumers[static_cast<std::size_t>(i)].die();
    }
  }
  producer_->collect();
  EXPECT_EQ(limbo_blocks(), 0);
}

TEST_F(FullTables, AConsumerMoreThanThereAreDescriptors) {
  std::byte* data = allocate();
  PlayedConsumer first(*producer_, 1);
  const ExportTicket ticket = share(data);
  struct rlimit before {};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  struct rlimit none = before;
  none.rlim_cur = 3;  // what is open stays open
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &none), 0);
  EXPECT_ERROR((void)producer_->add_lease({{.incarnation = {7, 2}, .pid = 2}}), kNoChannel);
  EXPECT_EQ(first.claim(ticket), ClaimVerdict::kStands);  // whoever is there is served
  first.release_all();
  producer_->collect();
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_EQ(stats().leases_connected, 1U);
  PlayedConsumer second(*producer_, 2);
  EXPECT_EQ(second.claim(ticket), ClaimVerdict::kStands);
  second.release_all();
  allocator_->free(data);
}

}  // namespace
}  // namespace limbo
