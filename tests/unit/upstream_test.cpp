// What a message says of numbers that had not come when it was sent on: the rows in the ledger, whom
// they name and for how long, and what is left out.
#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <new>
#include <optional>
#include <thread>
#include <vector>

#include "ipc/fail_point_hooks.h"
#include "ipc/protocol/upstream.h"
#include "ipc/timelines.h"
#include "tests/unit/producer_support.h"
#include "tests/unit/protocol_support.h"
#include "tests/unit/short_host_memory.h"

namespace limbo {
namespace {

using namespace limbo::testing;
using protocol::Arrival;
using protocol::UpstreamWord;
using protocol::testing::RecordingMemory;

// ---- the words ----------------------------------------------------------------------------------

struct PlainUpstream {
  std::uint32_t upstream_rows() const { return 3; }
  std::string upstream_where(std::uint32_t i) const { return "where" + std::to_string(i); }
  std::string upstream_number(std::uint32_t i) const { return "number" + std::to_string(i); }
  std::string upstream_next(std::uint32_t i) const { return "next" + std::to_string(i); }
};

TEST(ProtocolUpstream, TheWordKeepsItsParts) {
  for (const UpstreamWord& word : {UpstreamWord{}, UpstreamWord{true, 0, 0},
                                   UpstreamWord{false, 0x7fff'ffffU, 0xffff'ffffU}}) {
    EXPECT_EQ(protocol::decode_upstream(protocol::encode(word)), word);
  }
  EXPECT_EQ(protocol::encode(UpstreamWord{}), 0U);
}

TEST(ProtocolUpstream, WhatIsWrittenIsRead) {
  RecordingMemory memory;
  const PlainUpstream rows;
  protocol::write_upstream(memory, rows, 2, 20, 21, 0);
  protocol::write_upstream(memory, rows, 0, 10, 11, 3);
  std::vector<std::uint64_t> seen;
  const auto visit = [&](std::uint64_t where, std::uint64_t number) {
    seen.insert(seen.end(), {where, number});
  };
  EXPECT_TRUE(protocol::read_upstream(memory, rows, {false, 2, 1}, visit));
  EXPECT_EQ(seen, (std::vector<std::uint64_t>{10, 11, 20, 21}));
  EXPECT_TRUE(protocol::read_upstream(memory, rows, {}, visit));
  EXPECT_EQ(seen.size(), 4U);
}

TEST(ProtocolUpstream, RowsThatCannotBeAreNotRead) {
  RecordingMemory memory;
  const PlainUpstream rows;
  protocol::write_upstream(memory, rows, 0, 10, 11, 1);  // leads to itself
  protocol::write_upstream(memory, rows, 1, 10, 11, 5);  // out of range
  const auto read = [&](const UpstreamWord& word) {
    return protocol::read_upstream(memory, rows, word, [](std::uint64_t, std::uint64_t) {});
  };
  for (const UpstreamWord& word :
       {UpstreamWord{false, 1, 1}, UpstreamWord{false, 3, 1}, UpstreamWord{false, 4, 1},
        UpstreamWord{false, 1, 2}, UpstreamWord{false, 2, 2}, UpstreamWord{false, 1, 4},
        UpstreamWord{false, 1, 0}, UpstreamWord{false, 0, 1}}) {
    EXPECT_FALSE(read(word)) << word.count << " from " << word.first;
  }
}

// Whenever it is asked, before, during and after the end.
TEST(ProtocolUpstream, AnArrivalIsForEver) {
  RecordingMemory memory;
  const auto arrival = [&](std::uint64_t number) {
    return protocol::arrival_of(memory, std::string("value"), std::string("end"), number);
  };
  memory["value"] = 4;
  EXPECT_EQ(arrival(4), Arrival::kCame);
  EXPECT_EQ(arrival(5), Arrival::kPending);
  protocol::end_timeline(memory, std::string("value"), std::string("end"));
  EXPECT_EQ(arrival(4), Arrival::kCame);
  EXPECT_EQ(arrival(5), Arrival::kLost);
  memory["value"] = 5;  // too late
  EXPECT_EQ(arrival(5), Arrival::kLost);
}

// ---- the owner's exports --------------------------------------------------------------------------

class Upstream : public ProducerTest {
 protected:
  // A consumer with its timelines, each moved by hand.
  struct Forwarder {
    explicit Forwarder(Upstream& test)
        : consumer(*test.producer_),
          memory(SharedMemory::map_received(
              "test", ::fcntl(consumer.grant().own_timelines_fd, F_DUPFD_CLOEXEC, 0),
              timelines_bytes(small_tables()), ReceiverMay::kWrite)) {}
    [[nodiscard]] SharedWord& value(std::uint32_t index) const {
      return static_cast<Timeline*>(memory.data())[index].value;
    }
    PlayedConsumer consumer;
    SharedMemory memory;
  };

  void SetUp() override {
    ProducerTest::SetUp();
    ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, life_line_), 0);
    data_ = allocate();
    ticket_ = share(data_);
  }
  void TearDown() override {
    for (const int fd : life_line_) ::close(fd);
    ProducerTest::TearDown();
  }

  // Opens `held` and sends it on behind these numbers.
  ExportTicket pass_on(Forwarder& by, const ExportTicket& held, std::uint64_t number,
                       std::uint64_t second = 0, std::uint32_t index = 0) {
    std::uint32_t slot = 0;
    EXPECT_EQ(by.consumer.claim(held, &slot), ClaimVerdict::kStands);
    ForwardRequest request = request_of(held, slot, number, index);
    request.points[1] = {0, index + 1, second};
    const ExportTicket ticket = sent_on(by, held, request);
    producer_->check_invariants();
    return ticket;
  }
  static ForwardRequest request_of(const ExportTicket& held, std::uint32_t slot,
                                   std::uint64_t number, std::uint32_t index = 0) {
    ForwardRequest request = forward_request(held, slot);
    request.points[0] = {0, index, number};
    return request;
  }
  ExportTicket sent_on(Forwarder& by, const ExportTicket& held, const ForwardRequest& request) {
    // (Any descriptor stands for a pidfd here.)
    const auto made =
        producer_->forward(by.consumer.lease(), request, life_line_[1], life_line_[0], 0);
    producer_->heard(by.consumer.lease(), made);
    ExportTicket ticket = held;
    ticket.export_index = made.export_index;
    ticket.generation = made.generation;
    return ticket;
  }
  // What its row says: pairs of lease and number, and how it begins.
  UpstreamWord word_of(const ExportTicket& ticket) {
    return protocol::decode_upstream(ledger().export_row(ticket.export_index).upstream.load());
  }
  std::vector<std::pair<std::uint32_t, std::uint64_t>> named_by(const ExportTicket& ticket) {
    std::vector<std::pair<std::uint32_t, std::uint64_t>> named;
    protocol::StdMemory memory;
    EXPECT_TRUE(protocol::read_upstream(memory, ledger(), word_of(ticket),
                                        [&](std::uint64_t where, std::uint64_t number) {
                                          const TimelinePoint point = point_of(where, number);
                                          named.emplace_back(point.owner - 1, point.number);
                                        }));
    return named;
  }
  LedgerView ledger() { return {producer_->ledger_mapping(), small_tables()}; }
  static std::pair<std::uint32_t, std::uint64_t> number_of(const Forwarder& of,
                                                           std::uint64_t number) {
    return {of.consumer.lease(), number};
  }
  void end(std::initializer_list<Forwarder*> all) {
    for (Forwarder* each : all) each->consumer.release_all();
    allocator_->free(data_);
    producer_->collect();
    for (Forwarder* each : all) each->consumer.die();
    producer_->run_time_limits(Producer::Clock::now() + std::chrono::hours(2));
    producer_->collect();
    producer_->drop_forwarders();
    EXPECT_EQ(stats().forwarders, 0U);
  }

  int life_line_[2] = {-1, -1};
  std::byte* data_ = nullptr;
  ExportTicket ticket_;
};

TEST_F(Upstream, WhatIsOnItsWayIsNamedDownTheChain) {
  Forwarder first(*this), second(*this), third(*this);
  const ExportTicket one = pass_on(first, ticket_, 5);
  EXPECT_EQ(word_of(one), UpstreamWord{});  // the owner's own numbers are nobody's upstream
  const ExportTicket two = pass_on(second, one, 7, 8);
  EXPECT_EQ(named_by(two), (std::vector{number_of(first, 5)}));
  const ExportTicket three = pass_on(third, two, 9);
  EXPECT_EQ(named_by(three),
            (std::vector{number_of(first, 5), number_of(second, 8), number_of(second, 7)}));
  end({&first, &second, &third});
}

// The table is over half full, so that what nobody holds any more ends at the next pass: whoever was
// told that it may send on still finds what the message was made of.
TEST_F(Upstream, WhatIsGivenBackWhileItIsSentOnIsNamedStill) {
  Forwarder first(*this), second(*this);
  const ExportTicket one = pass_on(first, ticket_, 5);
  std::uint32_t slot = 0;
  ASSERT_EQ(second.consumer.claim(one, &slot), ClaimVerdict::kStands);
  std::vector<std::byte*> others;
  for (std::uint32_t count = 0; count <= small_tables().exports / 2; ++count) {
    others.push_back(allocate());
    (void)share(others.back());
  }
  set_fail_points("forward.after_note=delay:300");
  std::thread releasing([&] {
    EXPECT_TRUE(eventually([] { return fail_point_passed("forward.after_note") != 0; }));
    second.consumer.release(one);
  });
  const ExportTicket two = sent_on(second, one, request_of(one, slot, 7));
  releasing.join();
  set_fail_points("");
  EXPECT_EQ(named_by(two), (std::vector{number_of(first, 5)}));
  for (std::byte* data : others) allocator_->free(data);
  end({&first, &second});
}

TEST_F(Upstream, WhatHasComeIsLeftOut) {
  Forwarder first(*this), second(*this), third(*this);
  const ExportTicket one = pass_on(first, ticket_, 5);
  const ExportTicket two = pass_on(second, one, 7);
  first.value(0).store(5);
  const ExportTicket three = pass_on(third, two, 9);
  EXPECT_EQ(named_by(three), (std::vector{number_of(second, 7)}));
  second.value(0).store(8);
  EXPECT_EQ(word_of(pass_on(third, two, 10)), UpstreamWord{});
  end({&first, &second, &third});
}

TEST_F(Upstream, WhatWillNeverComeIsOneBit) {
  Forwarder first(*this), second(*this), third(*this);
  const ExportTicket one = pass_on(first, ticket_, 5);
  const ExportTicket two = pass_on(second, one, 7);
  EXPECT_TRUE(producer_->complete_waits(first.consumer.lease()));
  const UpstreamWord lost{true, 0, 0};
  EXPECT_EQ(word_of(pass_on(second, one, 8)), lost);
  const ExportTicket three = pass_on(third, two, 9);
  EXPECT_EQ(word_of(three), lost);
  EXPECT_EQ(word_of(pass_on(second, three, 9)), lost);  // for ever
  const OwnOpen own = producer_->open_own(three.export_index, three.generation);
  EXPECT_TRUE(ended_early(own));
  allocator_->unpin(own.block.block);
  end({&first, &second, &third});
}

// It goes round and round, and nothing of it ever comes: as many rows as timelines, not as messages.
TEST_F(Upstream, OfOneTimelineTheLastNumberIsNamed) {
  Forwarder first(*this), second(*this);
  ExportTicket ticket = ticket_;
  for (std::uint64_t round = 1; round <= 5; ++round) {
    ticket = pass_on(first, ticket, 2 * round);
    ticket = pass_on(second, ticket, 2 * round + 1);
  }
  const ExportTicket last = pass_on(first, ticket, 100);
  EXPECT_EQ(word_of(last).count, 2U);
  for (const auto& named : {number_of(first, 10), number_of(second, 11)}) {
    const auto all = named_by(last);
    EXPECT_NE(std::find(all.begin(), all.end(), named), all.end());
  }
  end({&first, &second});
}

// Whoever opens the last message asks for the first one's timelines.
TEST_F(Upstream, WhoeverIsNamedIsKept) {
  Forwarder first(*this), second(*this);
  const ExportTicket one = pass_on(first, ticket_, 5);
  const ExportTicket two = pass_on(second, one, 7);
  producer_->take_back(first.consumer.lease(), one.export_index, one.generation);
  second.consumer.release(one);
  producer_->collect();
  const std::uint32_t lease = first.consumer.lease();
  first.consumer.die();
  EXPECT_FALSE(producer_->has_forwarders_to_drop());
  EXPECT_TRUE(producer_->forwarder_files(lease).pidfd.valid());
  producer_->take_back(second.consumer.lease(), two.export_index, two.generation);
  allocator_->free(data_);
  producer_->collect();
  EXPECT_ERROR((void)producer_->forwarder_files(lease), kGone);
  EXPECT_TRUE(producer_->has_forwarders_to_drop());
  second.consumer.die();
  producer_->drop_forwarders();
  EXPECT_EQ(stats().forwarders, 0U);
}

// The half that is the owner's is taken by what it sends on itself.
TEST_F(Upstream, WhenAllRowsAreTakenNothingIsSentOn) {
  Forwarder first(*this), second(*this);
  const ExportTicket one = pass_on(first, ticket_, 5, 6);
  std::uint32_t slot = 0;
  ASSERT_EQ(second.consumer.claim(one, &slot), ClaimVerdict::kStands);
  const OwnOpen own = producer_->open_own(one.export_index, one.generation);
  std::uint32_t made = 0;
  const auto until_full = [&] {
    while (made <= small_tables().exports) {
      producer_->pin_own(own);
      (void)producer_->share_received(own, data_, 4096, {}, {});
      ++made;
    }
  };
  EXPECT_ERROR(until_full(), kLedgerFull);
  EXPECT_EQ(made, small_tables().exports / 2);
  EXPECT_LT(stats().exports_open, small_tables().exports);
  EXPECT_ERROR((void)sent_on(second, one, request_of(one, slot, 7)), kLedgerFull);
  allocator_->unpin(own.block.block);
  producer_->check_invariants();
  first.value(0).store(5);
  first.value(1).store(6);
  EXPECT_EQ(word_of(pass_on(second, one, 100)), UpstreamWord{});  // needs none
  end({&first, &second});
}

// What came back to its owner and is sent anew, while its forwarder is named, known, and forgotten.
TEST_F(Upstream, WhatTheOwnerSendsOnNamesWhatItCameBehind) {
  Forwarder first(*this), second(*this);
  const ExportTicket one = pass_on(first, ticket_, 5);
  const ExportTicket two = pass_on(second, one, 7);
  const OwnOpen own = producer_->open_own(two.export_index, two.generation);
  const auto send = [&] {
    producer_->pin_own(own);
    const ExportTicket sent = producer_->share_received(own, data_, 4096, {}, {});
    producer_->check_invariants();
    return sent;
  };
  const ExportTicket named = send();
  EXPECT_EQ(named_by(named), (std::vector{number_of(first, 5), number_of(second, 7)}));
  // Both messages are over, and nobody names the forwarders but what is held here.
  producer_->withdraw(named.export_index, named.generation);
  producer_->take_back(first.consumer.lease(), one.export_index, one.generation);
  producer_->take_back(second.consumer.lease(), two.export_index, two.generation);
  for (Forwarder* each : {&first, &second}) each->consumer.release_all();
  allocator_->free(data_);
  producer_->collect();
  EXPECT_EQ(stats().forwarders, 0U);
  second.value(0).store(7);
  const ExportTicket again = send();
  EXPECT_EQ(named_by(again), (std::vector{number_of(first, 5)}));
  EXPECT_TRUE(producer_->forwarder_files(first.consumer.lease()).life_line.valid());
  producer_->withdraw(again.export_index, again.generation);
  producer_->collect();
  EXPECT_FALSE(ended_early(own));
  for (Forwarder* each : {&first, &second}) each->consumer.die();
  producer_->drop_forwarders();
  EXPECT_TRUE(ended_early(own));
  const ExportTicket late = send();
  EXPECT_EQ(word_of(late), (UpstreamWord{true, 0, 0}));
  producer_->withdraw(late.export_index, late.generation);
  allocator_->unpin(own.block.block);
  producer_->collect();
}

// Of what it holds, and of what it has given back: nobody but the asker knows that these are one memory.
TEST_F(Upstream, WhatFurtherMessagesWereBehindIsNamedToo) {
  Forwarder first(*this), second(*this), asker(*this);
  const ExportTicket one = pass_on(first, ticket_, 5);
  (void)pass_on(second, ticket_, 7);
  std::uint32_t slot = 0;
  ASSERT_EQ(asker.consumer.claim(one, &slot), ClaimVerdict::kStands);
  ForwardRequest ask = request_of(one, slot, 9);
  const std::uint32_t of_first = first.consumer.lease() + 1;
  const std::uint32_t of_second = second.consumer.lease() + 1;
  ask.also_behind = {{of_second, 0, 7}, {of_first, 0, 6}};
  EXPECT_EQ(named_by(sent_on(asker, one, ask)),
            (std::vector{number_of(second, 7), number_of(first, 6)}));
  second.value(0).store(7);
  EXPECT_EQ(named_by(sent_on(asker, one, ask)), (std::vector{number_of(first, 6)}));
  ask.also_lost = true;
  EXPECT_EQ(word_of(sent_on(asker, one, ask)), (UpstreamWord{true, 0, 0}));
  const auto sends = stats().forwards;
  const auto refused = [&](const std::vector<TimelinePoint>& named) {
    ask.also_behind = named;
    EXPECT_ERROR((void)sent_on(asker, one, ask), kBadArgument);
    producer_->check_invariants();
  };
  refused({{0, 0, 7}});
  refused({{of_first, small_tables().timelines, 7}});
  refused({{of_first, 0, 0}});
  refused({{of_first, 0, protocol::kTimelineEnded + 1}});
  refused(std::vector<TimelinePoint>(protocol::kMostUpstream + 1, {of_first, 0, 6}));
  ask.also_behind = {{asker.consumer.lease() + 100, 0, 7}};  // one that is over, or was never there
  EXPECT_ERROR((void)sent_on(asker, one, ask), kNotAvailableYet);
  EXPECT_EQ(stats().forwards, sends);
  end({&first, &second, &asker});
}

// The word is the forwarder's, and a broken one sets it back. Nothing that it has sent on is open, so
// nobody could be told of its end.
TEST_F(Upstream, WhatHadComeAndIsSaidNotToHaveIsLost) {
  Forwarder broken(*this), asker(*this);
  std::byte* other = allocate();
  const ExportTicket over = pass_on(broken, share(other), 5);
  producer_->take_back(broken.consumer.lease(), over.export_index, over.generation);
  broken.consumer.release_all();
  allocator_->free(other);
  producer_->collect();
  EXPECT_ERROR((void)producer_->forwarder_files(broken.consumer.lease()), kGone);
  std::uint32_t slot = 0;
  ASSERT_EQ(asker.consumer.claim(ticket_, &slot), ClaimVerdict::kStands);
  ForwardRequest ask = request_of(ticket_, slot, 9);
  ask.also_behind = {{broken.consumer.lease() + 1, 0, 7}};
  broken.value(0).store(7);
  at_fail_point("forward.after_pin", [&] { broken.value(0).store(0); });
  const ExportTicket sent = sent_on(asker, ticket_, ask);
  EXPECT_EQ(broken.value(0).load(), 0U);
  EXPECT_EQ(word_of(sent), (UpstreamWord{true, 0, 0}));
  EXPECT_ERROR((void)producer_->forwarder_files(broken.consumer.lease()), kGone);
  const OwnOpen own = producer_->open_own(sent.export_index, sent.generation);
  EXPECT_TRUE(ended_early(own));
  for (const ForwardersNumber& number : own.behind) EXPECT_NE(number.signs, nullptr);
  allocator_->unpin(own.block.block);
  end({&broken, &asker});
}

TEST_F(Upstream, HostMemoryThatRunsOutLosesNothing) {
  Forwarder first(*this), second(*this), third(*this);
  const ExportTicket two = pass_on(second, pass_on(first, ticket_, 5, 6), 7);
  std::optional<OwnOpen> own;
  const auto check = [&] { producer_->check_invariants(); };
  with_ever_more_memory([&] { own = producer_->open_own(two.export_index, two.generation); },
                        check);
  ASSERT_TRUE(own);
  EXPECT_EQ(own->behind.size(), 3U);
  allocator_->unpin(own->block.block);
  std::optional<ExportTicket> three;
  std::uint32_t slot = 0;
  ASSERT_EQ(third.consumer.claim(two, &slot), ClaimVerdict::kStands);
  const ForwardRequest request = request_of(two, slot, 9);
  with_ever_more_memory([&] { three = sent_on(third, two, request); }, check);
  ASSERT_TRUE(three);
  EXPECT_EQ(named_by(*three).size(), 3U);
  end({&first, &second, &third});
}

}  // namespace
}  // namespace limbo
