// What a process that sends on may use up of its owner's: memory, exports, rows of upstream numbers.
// And in whose name it may speak.
#include <fcntl.h>
#include <malloc.h>

#include <functional>

#include "ipc/life_line.h"
#include "ipc/owned_fd.h"
#include "tests/unit/producer_support.h"

namespace limbo {
namespace {

using namespace limbo::testing;

constexpr Capacities kTables{.exports = 256, .pieces = 16, .claims = 1024, .timelines = 256};
constexpr std::uint32_t kOfOneLease = kTables.exports / 4;
constexpr std::uint32_t kOfAllForwards = kTables.exports / 2;
constexpr std::uint32_t kMostPending = 64;  // numbers of one message that have not come

std::size_t host_memory_in_use() {
  const struct mallinfo2 facts = ::mallinfo2();
  return facts.uordblks + facts.hblkhd;
}

class ForwardLimits : public ProducerTest {
 protected:
  // Sends on what it has received once.
  struct Asker {
    Asker(ForwardLimits& test, const ExportTicket& ticket) : consumer(*test.producer_) {
      EXPECT_EQ(consumer.claim(ticket, &slot), ClaimVerdict::kStands);
    }
    PlayedConsumer consumer;
    std::uint32_t slot = 0;
  };

  void SetUp() override {
    ProducerTest::SetUp();
    make_producer(kTables);
    const life_line::Ends ends = life_line::make_ends();
    held_end_.reset(ends.held);
    far_end_.reset(ends.far);
    data_ = allocate();
    ticket_ = share(data_);
  }
  void TearDown() override {
    held_end_.reset();
    far_end_.reset();
    ProducerTest::TearDown();
  }

  // (Any descriptor stands for a pidfd here.)
  ExportTicket forward(PlayedConsumer& by, const ForwardRequest& request) {
    const auto made = producer_->forward(by.lease(), request, far_end_.get(), far_end_.get(), 0);
    producer_->heard(by.lease(), made);
    ExportTicket ticket = ticket_;
    ticket.export_index = made.export_index;
    ticket.generation = made.generation;
    return ticket;
  }
  // How often it works; then it is refused with these words.
  std::uint32_t until_refused(const std::function<void()>& forward_once, const std::string& words) {
    for (std::uint32_t made = 0; made <= kTables.exports; ++made) {
      try {
        forward_once();
      } catch (const Error& refused) {
        EXPECT_EQ(refused.code(), ErrorCode::kLedgerFull) << refused.what();
        EXPECT_TRUE(contains(refused.what(), words)) << refused.what();
        EXPECT_TRUE(contains(refused.what(), "ledger_exports") ||
                    contains(refused.what(), "clone()"))
            << refused.what();
        producer_->check_invariants();
        return made;
      }
    }
    ADD_FAILURE() << "it is never refused";
    return kTables.exports;
  }
  void let_go() {
    if (data_ != nullptr) allocator_->free(std::exchange(data_, nullptr));
    producer_->collect();
  }
  void end(std::initializer_list<PlayedConsumer*> all) {
    for (PlayedConsumer* each : all) each->die();
    let_go();
    producer_->run_time_limits(Producer::Clock::now() + std::chrono::hours(2));
    producer_->collect();
    producer_->drop_forwarders();
    EXPECT_EQ(stats().forwarders, 0U);
  }

  OwnedFd held_end_;
  OwnedFd far_end_;
  std::byte* data_ = nullptr;
  ExportTicket ticket_;
};

// ---- exports ------------------------------------------------------------------------------------

TEST_F(ForwardLimits, AMillionPromisesTakeNoMemoryOfTheOwnersUntilTheyAreKept) {
  Asker asker(*this, ticket_);
  ForwardRequest ask = forward_request(ticket_, asker.slot);
  ask.consumers = 1'000'000;
  const std::size_t before = host_memory_in_use();
  EXPECT_EQ(until_refused([&] { (void)forward(asker.consumer, ask); }, "64 of the 256 exports"),
            kOfOneLease);
  EXPECT_LT(host_memory_in_use(), before + (1U << 20));
  // The owner sends as before.
  const ExportTicket own = share(data_);
  EXPECT_TRUE(producer_->withdraw(own.export_index, own.generation));
  end({&asker.consumer});
}

TEST_F(ForwardLimits, OneLeaseTakesAQuarterAndAllForwardsHalf) {
  Asker greedy(*this, ticket_);
  Asker second(*this, ticket_);
  Asker third(*this, ticket_);
  const auto sends = [&](Asker& asker) {
    return [this, &asker] { (void)forward(asker.consumer, forward_request(ticket_, asker.slot)); };
  };
  EXPECT_EQ(until_refused(sends(greedy), "one process"), kOfOneLease);
  std::vector<ExportTicket> made;
  for (std::uint32_t i = 0; i < kOfOneLease; ++i) {
    made.push_back(forward(second.consumer, forward_request(ticket_, second.slot)));
  }
  EXPECT_EQ(until_refused(sends(third), "all processes"), 0U);
  EXPECT_EQ(stats().exports_open, kOfAllForwards + 1);
  std::vector<ExportTicket> own;
  while (stats().exports_open < kTables.exports) own.push_back(share(data_));
  EXPECT_EQ(own.size(), kTables.exports - kOfAllForwards - 1);
  // What is over leaves room.
  for (const ExportTicket& ticket : own) {
    EXPECT_TRUE(producer_->withdraw(ticket.export_index, ticket.generation));
  }
  const ExportTicket last = made.back();
  producer_->take_back(second.consumer.lease(), last.export_index, last.generation);
  producer_->collect();
  EXPECT_EQ(until_refused(sends(third), "all processes"), 1U);
  end({&greedy.consumer, &second.consumer, &third.consumer});
}

// ---- upstream -----------------------------------------------------------------------------------

// A consumer sends on to itself, each time behind numbers of timelines that were not used before.
class PendingNumbers : public ForwardLimits {
 protected:
  // The next message of a chain, behind one number more.
  ExportTicket next(PlayedConsumer& by, const ExportTicket& held) {
    std::uint32_t slot = 0;
    EXPECT_EQ(by.claim(held, &slot), ClaimVerdict::kStands);
    ForwardRequest ask = forward_request(held, slot);
    ask.points[0] = {0, next_timeline_++, 1};
    return forward(by, ask);
  }
  protocol::UpstreamWord upstream(const PlayedConsumer& seen_by, const ExportTicket& ticket) {
    return protocol::decode_upstream(
        seen_by.ledger().export_row(ticket.export_index).upstream.load());
  }

  std::uint32_t next_timeline_ = 0;
};

TEST_F(PendingNumbers, OneMessageNamesSixtyFourAndNoMore) {
  std::vector<std::unique_ptr<PlayedConsumer>> chain;
  chain.push_back(std::make_unique<PlayedConsumer>(*producer_));
  chain.push_back(std::make_unique<PlayedConsumer>(*producer_));
  const auto by = [&](std::uint32_t number) -> PlayedConsumer& { return *chain[number % 2]; };
  ExportTicket last = next(by(0), ticket_);
  let_go();
  EXPECT_EQ(upstream(by(0), last), protocol::UpstreamWord{});
  // Each later one names one number more, and then the one before is over.
  for (std::uint32_t number = 1; number <= kMostPending; ++number) {
    const ExportTicket before = std::exchange(last, next(by(number), last));
    ASSERT_EQ(upstream(by(0), last).count, number);
    by(number).release(before);
    producer_->take_back(by(number - 1).lease(), before.export_index, before.generation);
    producer_->collect();
    producer_->check_invariants();
  }
  EXPECT_EQ(stats().exports_open,
            2U);  // the owner's, which the first one holds still; and the last
  EXPECT_EQ(until_refused([&] { (void)next(by(1), last); }, "64 numbers"), 0U);
  EXPECT_EQ(stats().exports_open, 2U);
  // What is known never to come needs no room.
  EXPECT_TRUE(producer_->complete_waits(by(0).lease()));
  const ExportTicket lost = next(by(1), last);
  EXPECT_EQ(upstream(by(0), lost), (protocol::UpstreamWord{true, 0, 0}));
  for (const auto& each : chain) each->release_all();
  end({chain[0].get(), chain[1].get()});
}

TEST_F(PendingNumbers, OneLeaseTakesAQuarterOfTheRows) {
  PlayedConsumer hostile(*producer_);
  PlayedConsumer honest(*producer_);
  ExportTicket last = ticket_;
  // Its messages name 0, 1, 2, ... numbers: 55 up to the eleventh, and 64 it may.
  const auto go_on = [&] { last = next(hostile, last); };
  EXPECT_EQ(until_refused(go_on, "one process"), 11U);
  EXPECT_EQ(upstream(hostile, last).count, 10U);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(upstream(honest, next(honest, last)).count, 11U);
  end({&hostile, &honest});
}

// ---- in whose name ------------------------------------------------------------------------------

TEST_F(ForwardLimits, AnIncarnationThatSomebodyElseSaysTakesNothingBack) {
  const LeasePeer peer{{.incarnation = {7, 4711}, .pid = 21, .process = 1001}};
  const auto lease_of = [&](LeasePeer other) { return producer_->add_lease(other).lease_number; };
  PlayedConsumer asker(*producer_, peer);
  PlayedConsumer third(*producer_);
  std::uint32_t slot = 0;
  ASSERT_EQ(asker.claim(ticket_, &slot), ClaimVerdict::kStands);
  const ExportTicket on = forward(asker, forward_request(ticket_, slot));
  LeasePeer hostile = peer;
  hostile.identity.pid = 22;
  hostile.identity.process = 1002;
  const std::uint32_t by_its_word = lease_of(hostile);
  hostile.identity.pid =
      peer.identity.pid;  // the pid of another process, in another namespace or at another time
  const std::uint32_t by_its_pid = lease_of(hostile);
  hostile = peer;
  hostile.identity.incarnation.low += 1;
  const std::uint32_t after_exec = lease_of(hostile);
  for (const std::uint32_t lease : {by_its_word, by_its_pid, after_exec}) {
    producer_->take_back(lease, on.export_index, on.generation);
    EXPECT_EQ(stats().withdrawn, 0U) << lease;
  }
  EXPECT_EQ(third.claim(on), ClaimVerdict::kStands);
  // Over another connection of its own it may.
  const ExportTicket again = forward(asker, forward_request(ticket_, slot));
  producer_->take_back(lease_of(peer), again.export_index, again.generation);
  EXPECT_EQ(stats().withdrawn, 1U);
  third.release_all();
  end({&asker, &third});
}

}  // namespace
}  // namespace limbo
