// Sharing: what a send leaves in the ledger, what it refuses, and what a failed one leaves behind.
#include <thread>

#include <cstring>

#include "allocator/capture_gate.h"
#include "allocator/options.h"
#include "ipc/ledger_options.h"
#include "tests/unit/producer_support.h"

namespace limbo {
namespace {

using namespace limbo::testing;
using protocol::ExportField;
using protocol::ExportState;
using std::chrono::milliseconds;

class ProducerShare : public ProducerTest {};

TEST_F(ProducerShare, LedgerSaysWhatTheTicketSays) {
  PlayedConsumer consumer(*producer_);
  std::byte* first = allocate();
  std::byte* data = allocate();
  const ExportTicket ticket = share(data + 512, 1024);
  const LedgerView& ledger = consumer.ledger();
  EXPECT_EQ(ledger.header().magic.load(), kLedgerMagic);
  EXPECT_EQ(ledger.header().incarnation_low.load(), 2U);
  EXPECT_EQ(word(ticket).state, ExportState::kOpen);
  EXPECT_EQ(consumer.claim(ticket), ClaimVerdict::kStands);
  const protocol::ExportFields fields = consumer.fields(ticket);
  EXPECT_EQ(at(fields, ExportField::kFirstPiece), ticket.piece_index);
  EXPECT_EQ(at(fields, ExportField::kPieceGeneration), ticket.piece_generation);
  EXPECT_EQ(at(fields, ExportField::kPieceCount), 1U);
  EXPECT_EQ(at(fields, ExportField::kOffsetBytes), ticket.offset_bytes);
  EXPECT_EQ(at(fields, ExportField::kSizeBytes), 1024U);
  EXPECT_EQ(at(fields, ExportField::kPointNumber0), ticket.points[0].number);
  EXPECT_EQ(at(fields, ExportField::kPointNumber1), 0U);
  const BlockView block = *allocator_->find(data);
  EXPECT_EQ(ticket.offset_bytes, block.offset_bytes + 512);
  EXPECT_EQ(ticket.piece_size_bytes, block.piece_size_bytes);
  EXPECT_EQ(ticket.device_uuid, sim_->uuid(0));
  const PieceRow& piece = ledger.piece(ticket.piece_index);
  EXPECT_EQ(piece.word.load(), (ticket.piece_generation << 2) | kPieceInUse);
  EXPECT_EQ(piece.size_bytes.load(), block.piece_size_bytes);
  MemoryHandle handle;
  std::memcpy(handle.bytes.data(), piece.handle, handle.bytes.size());
  EXPECT_EQ(handle, sim_->export_memory(0, block.piece_base));
  allocator_->free(data);
  allocator_->free(first);
  EXPECT_EQ(limbo_blocks(), 1);
  consumer.release_all();
  EXPECT_TRUE(producer_->collect());
}

TEST_F(ProducerShare, OneSendIsOneExportAndOnePieceServesMany) {
  PlayedConsumer consumer(*producer_);
  std::byte* data = allocate();
  const ExportTicket first = share(data);
  const ExportTicket second = share(data);
  EXPECT_NE(first.export_index, second.export_index);
  EXPECT_EQ(first.piece_index, second.piece_index);
  EXPECT_EQ(sim_->calls(CallKind::kExport), 1U);
  EXPECT_EQ(stats().in_flight, 2U);
  for (const ExportTicket& ticket : {first, second}) {
    EXPECT_EQ(consumer.claim(ticket), ClaimVerdict::kStands);
  }
  consumer.release_all();
  allocator_->free(data);
}

// Trace 16: shared by a thread whose current stream is not the block's home: two pairs.
TEST_F(ProducerShare, HomeAndCurrentStreamBothCount) {
  PlayedConsumer consumer(*producer_);
  const StreamRef home{0, sim_->create_stream(0)};
  const StreamRef current{0, sim_->create_stream(0)};
  std::byte* data = allocate(4096, home);
  const SimHold hold_home = sim_->hold_stream(home);
  const SimHold hold_current = sim_->hold_stream(current);
  ShareOptions options;
  options.current_stream = current;
  const ExportTicket ticket = producer_->share(data, 4096, options);
  EXPECT_NE(ticket.points[0].index, ticket.points[1].index);
  EXPECT_NE(ticket.points[1].number, 0U);
  // A reader behind both numbers is held until both streams have come so far.
  const StreamRef reader{0, sim_->create_stream(0)};
  for (const TimelinePoint& point : ticket.points) producer_->wait_own(reader, point);
  const EventHandle event = sim_->create_event(0);
  sim_->record_event(reader, event);
  sim_->release_hold(hold_current);
  sim_->synchronize_stream(current);
  EXPECT_FALSE(sim_->query_event(0, event));
  sim_->release_hold(hold_home);
  sim_->synchronize_stream(reader);
  EXPECT_TRUE(sim_->query_event(0, event));
  sim_->destroy_event(0, event);
  EXPECT_EQ(consumer.claim(ticket), ClaimVerdict::kStands);
  consumer.release_all();
  allocator_->free(data);
  producer_->collect();
  for (const StreamRef stream : {home, current, reader}) sim_->destroy_stream(stream);
}

TEST_F(ProducerShare, BadRequestsAreRefusedAndChangeNothing) {
  std::byte* data = allocate();
  ShareOptions options;
  EXPECT_ERROR((void)producer_->share(nullptr, 1, options), kBadArgument);
  EXPECT_ERROR((void)producer_->share(data, 0, options), kBadArgument);
  EXPECT_ERROR((void)producer_->share(data, 4097, options), kBadArgument);
  EXPECT_ERROR((void)producer_->share(data + 1, 4096, options), kBadArgument);
  EXPECT_ERROR((void)producer_->share(&options, 1, options), kNotLendable);
  options.consumers = 0;
  EXPECT_ERROR((void)producer_->share(data, 1, options), kBadArgument);
  options.consumers = 1'000'001;
  EXPECT_ERROR((void)producer_->share(data, 1, options), kBadArgument);
  options.consumers = 1;
  options.time_limit = milliseconds(-1);
  EXPECT_ERROR((void)producer_->share(data, 1, options), kBadArgument);
  allocator_->free(data);
  EXPECT_EQ(limbo_blocks(), 0);
  EXPECT_ERROR((void)share(data), kNotLendable);
  EXPECT_EQ(stats().sends, 0U);
}

TEST_F(ProducerShare, CapturingStreamIsRefusedAndTheCaptureGoesOn) {
  const StreamRef stream{0, sim_->create_stream(0)};
  std::byte* data = allocate(4096, stream);
  sim_->begin_capture(stream, SimCaptureMode::kGlobal);
  EXPECT_ERROR((void)share(data), kNotAvailableYet);  // the home stream
  ShareOptions options;
  options.current_stream = stream;
  std::byte* other = allocate();
  EXPECT_ERROR((void)producer_->share(other, 4096, options), kNotAvailableYet);
  EXPECT_NO_THROW((void)sim_->end_capture(stream));
  EXPECT_EQ(stats().exports_open, 0U);
  allocator_->free(other);
  allocator_->free(data);
  EXPECT_EQ(limbo_blocks(), 0);
  sim_->destroy_stream(stream);
}

// By another thread, in the middle of a send: it ends well, and the number is not the graph's.
TEST_F(ProducerShare, ACaptureThatIsAnnouncedBeginsBehindASend) {
  const StreamRef stream{0, sim_->create_stream(0)};
  std::byte* data = allocate(4096, stream);
  for (const CallKind kind : {CallKind::kStreamId, CallKind::kWriteWords}) {
    sim_->faults().add({.kind = kind, .action = Fault::Action::kSlow, .delay = milliseconds(50)});
    const std::uint64_t before = sim_->calls(kind);
    ExportTicket ticket;
    std::thread sender([&] {
      ShareOptions options;
      options.current_stream = stream;
      ticket = producer_->share(data, 4096, options);
    });
    while (sim_->calls(kind) == before) std::this_thread::yield();
    {
      const BeginningCapture beginning(stream);
      sim_->begin_capture(stream, SimCaptureMode::kRelaxed);
    }
    sender.join();
    EXPECT_NO_THROW((void)sim_->end_capture(stream));
    sim_->synchronize_stream(stream);
    EXPECT_TRUE(producer_->withdraw(ticket.export_index, ticket.generation));
  }
  allocator_->free(data);
  producer_->collect();
  EXPECT_EQ(limbo_blocks(), 0);
  sim_->destroy_stream(stream);
}

// Whatever fails on the way: no pin, no slot, no export; and the next send works.
TEST_F(ProducerShare, FailedSendLeavesNothing) {
  PlayedConsumer consumer(*producer_);
  std::byte* data = allocate();
  for (const char* point :
       {"share.after_pin=error", "share.after_reserve=error", "share.after_enqueue=error"}) {
    set_fail_points(point);
    EXPECT_ERROR((void)share(data), kInternal) << point;
    set_fail_points("");
    producer_->check_invariants();
    EXPECT_EQ(stats().exports_open, 0U) << point;
  }
  for (const char* fault : {"export_memory:1=fail", "write_words:1=fail"}) {
    std::byte* other = allocate(8 << 20);  // of another piece
    sim_->faults().add(fault);
    EXPECT_ERROR((void)share(other), kDeviceError) << fault;
    sim_->faults().clear();
    producer_->check_invariants();
    EXPECT_EQ(stats().exports_open, 0U) << fault;
    allocator_->free(other);
    EXPECT_EQ(limbo_blocks(), 0) << fault;
    allocator_->empty_cache();
  }
  const ExportTicket ticket = share(data);
  EXPECT_EQ(consumer.claim(ticket), ClaimVerdict::kStands);
  consumer.release_all();
  allocator_->free(data);
}

TEST_F(ProducerShare, FullTableNamesTheOptionAndWorksAgainLater) {
  PlayedConsumer consumer(*producer_);
  std::byte* data = allocate();
  std::vector<ExportTicket> tickets;
  for (std::uint32_t i = 0; i < small_tables().exports; ++i) tickets.push_back(share(data));
  try {
    (void)share(data);
    ADD_FAILURE() << "one more than there is room for";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kLedgerFull);
    EXPECT_TRUE(contains(error.what(), "ledger_exports")) << error.what();
  }
  producer_->check_invariants();
  // One message is opened and released: the next send finds its slot.
  EXPECT_EQ(consumer.claim(tickets[7]), ClaimVerdict::kStands);
  consumer.release_all();
  const ExportTicket next = share(data);
  EXPECT_EQ(next.export_index, tickets[7].export_index);
  EXPECT_EQ(next.generation, tickets[7].generation + 1);
  tickets[7] = next;
  for (const ExportTicket& ticket : tickets) {
    EXPECT_TRUE(producer_->withdraw(ticket.export_index, ticket.generation));
  }
  allocator_->free(data);
}

TEST_F(ProducerShare, FullPieceTableNamesTheOption) {
  make_producer({.exports = 8, .pieces = 1, .claims = 512, .timelines = 4});
  std::byte* small = allocate();
  std::byte* large = allocate(16 << 20);
  const ExportTicket ticket = share(small);
  try {
    (void)share(large);
    ADD_FAILURE() << "a second piece";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kLedgerFull);
    EXPECT_TRUE(contains(error.what(), "ledger_pieces")) << error.what();
  }
  allocator_->free(large);
  EXPECT_EQ(limbo_blocks(), 0);
  EXPECT_TRUE(producer_->withdraw(ticket.export_index, ticket.generation));
  allocator_->free(small);
}

// Messages that all have been opened and released stay claimable while their owner keeps the
// storage, but not at the price of a full table: the oldest are closed first.
TEST_F(ProducerShare, MoreThanHalfFullClosesTheOldest) {
  PlayedConsumer consumer(*producer_);
  std::byte* data = allocate();
  std::vector<ExportTicket> tickets;
  for (int i = 0; i < 200; ++i) {
    tickets.push_back(share(data));
    ASSERT_EQ(consumer.claim(tickets.back()), ClaimVerdict::kStands);
    consumer.release_all();
    producer_->collect();
    ASSERT_LE(stats().exports_open, small_tables().exports / 2 + 1);
  }
  EXPECT_EQ(consumer.claim(tickets.front()), ClaimVerdict::kGone);
  EXPECT_EQ(consumer.claim(tickets.back()), ClaimVerdict::kStands);
  consumer.release_all();
  allocator_->free(data);
}

TEST_F(ProducerShare, HeldAndPromisedOnesSurviveTheHalfFullTable) {
  PlayedConsumer consumer(*producer_);
  std::byte* data = allocate();
  const ExportTicket promised = share(data);
  const ExportTicket held = share(data);
  ASSERT_EQ(consumer.claim(held), ClaimVerdict::kStands);
  for (int i = 0; i < 100; ++i) {
    const ExportTicket ticket = share(data);
    ASSERT_EQ(consumer.claim(ticket), ClaimVerdict::kStands);
    consumer.release(ticket);
  }
  EXPECT_EQ(word(promised).state, ExportState::kOpen);
  EXPECT_EQ(word(held).state, ExportState::kOpen);
  EXPECT_EQ(consumer.claim(promised), ClaimVerdict::kStands);
  consumer.release_all();
  allocator_->free(data);
}

// A block that another thread frees while it is being sent is let go all the same, whether the
// free is seen before the export hangs on the block or after.
TEST_F(ProducerShare, BlockFreedDuringTheSend) {
  for (const std::string point : {"share.after_pin", "share.after_reserve"}) {
    set_fail_points(point + "=delay:200");
    std::byte* data = allocate();
    ExportTicket ticket;
    std::thread sender([&] { ticket = share_for(data, milliseconds(0)); });
    ASSERT_TRUE(eventually([&] { return fail_point_passed(point) == 1; }));
    allocator_->free(data);
    producer_->collect();
    sender.join();
    set_fail_points("");
    EXPECT_TRUE(producer_->next_deadline().has_value()) << point;
    producer_->run_time_limits(Producer::Clock::now() + std::chrono::seconds(1));
    EXPECT_EQ(stats().exports_open, 0U) << point;
    EXPECT_EQ(limbo_blocks(), 0) << point;
  }
}

TEST_F(ProducerShare, LostContextIsToldInTheLedgerAndToSenders) {
  PlayedConsumer consumer(*producer_);
  std::byte* data = allocate();
  const ExportTicket ticket = share(data);
  producer_->mark_context_lost();
  EXPECT_EQ(consumer.ledger().header().context_lost.load(), 1U);
  EXPECT_ERROR((void)share(data), kDeviceError);
  EXPECT_EQ(consumer.claim(ticket), ClaimVerdict::kStands);
  consumer.release_all();
  allocator_->free(data);
}

TEST_F(ProducerShare, OptionsBecomeCapacities) {
  EXPECT_ERROR(set_option("ledger_claims", 1000), kUnknownOption);
  EXPECT_EQ(capacities_from_options(), Capacities{});
  EXPECT_ERROR(make_producer({.exports = 8, .pieces = 1, .claims = 100, .timelines = 1}),
               kBadArgument);
  EXPECT_ERROR(make_producer({.exports = (1U << 24) + 1}), kBadArgument);
}

// ---- in the same process --------------------------------------------------------------------

TEST_F(ProducerShare, OwnOpenGivesTheBlockItself) {
  std::byte* data = allocate();
  const ExportTicket ticket = share(data + 512, 1000);
  const std::uint64_t opens = sim_->calls(CallKind::kOpen);
  const OwnOpen own = producer_->open_own(ticket.export_index, ticket.generation);
  EXPECT_EQ(own.block.data, data);
  EXPECT_EQ(own.offset_bytes, ticket.offset_bytes);
  EXPECT_EQ(own.size_bytes, 1000U);
  EXPECT_EQ(own.points[0], ticket.points[0]);
  EXPECT_EQ(sim_->calls(CallKind::kOpen), opens);
  EXPECT_EQ(stats().in_flight, 0U);
  // Opening as the owner does not hold the export on, but the block.
  allocator_->free(data);
  producer_->collect();
  EXPECT_EQ(stats().exports_open, 0U);
  EXPECT_EQ(limbo_blocks(), 1);
  EXPECT_ERROR((void)producer_->open_own(ticket.export_index, ticket.generation), kGone);
  allocator_->unpin(own.block.block);
  EXPECT_EQ(limbo_blocks(), 0);
}

TEST_F(ProducerShare, OwnOpenMeetsWhatAConsumerWouldMeet) {
  std::byte* data = allocate();
  const ExportTicket withdrawn = share(data);
  const ExportTicket expired = share_for(data, milliseconds(0));
  EXPECT_ERROR((void)producer_->open_own(expired.export_index, expired.generation + 1), kGone);
  EXPECT_ERROR((void)producer_->open_own(1 << 30, 1), kGone);
  EXPECT_TRUE(producer_->withdraw(withdrawn.export_index, withdrawn.generation));
  EXPECT_ERROR((void)producer_->open_own(withdrawn.export_index, withdrawn.generation), kWithdrawn);
  allocator_->free(data);
  producer_->run_time_limits(Producer::Clock::now() + std::chrono::seconds(1));
  EXPECT_ERROR((void)producer_->open_own(expired.export_index, expired.generation), kExpired);
  EXPECT_ERROR((void)producer_->open_own(withdrawn.export_index, withdrawn.generation), kWithdrawn);
}

}  // namespace
}  // namespace limbo
