// Which streams a descriptor orders its reader behind.
#include "tests/unit/producer_support.h"

namespace limbo {
namespace {

using namespace limbo::testing;

using HomeStreamOnly = ProducerTest;

// Allocated on stream A, written on B, sent by the thread whose current stream is B.
TEST_F(HomeStreamOnly, TheReaderComesBehindTheSendersCurrentStream) {
  PlayedConsumer consumer(*producer_);
  const StreamRef home{0, sim_->create_stream(0)};
  const StreamRef current{0, sim_->create_stream(0)};
  const StreamRef reader{0, sim_->create_stream(0)};
  std::byte* data = allocate(4096, home);
  const SimHold writing = sim_->hold_stream(current);
  ShareOptions options;
  options.current_stream = current;
  const ExportTicket ticket = producer_->share(data, 4096, options);
  for (const TimelinePoint& point : ticket.points) producer_->wait_own(reader, point);
  const EventHandle read = sim_->create_event(0);
  sim_->record_event(reader, read);
  sim_->synchronize_stream(home);
  const EventHandle home_is_idle = sim_->create_event(0);
  sim_->record_event(home, home_is_idle);
  // The reader's stream has nothing else to wait for: give it time to run ahead.
  EXPECT_FALSE(
      eventually([&] { return sim_->query_event(0, read); }, std::chrono::milliseconds(50)))
      << "the reader is early";
  sim_->release_hold(writing);
  sim_->synchronize_stream(reader);
  EXPECT_TRUE(sim_->query_event(0, read));
  for (const EventHandle event : {read, home_is_idle}) sim_->destroy_event(0, event);
  EXPECT_EQ(consumer.claim(ticket), ClaimVerdict::kStands);
  consumer.release_all();
  allocator_->free(data);
  producer_->collect();
  sim_->wait_until_idle();
  for (const StreamRef stream : {home, current, reader}) sim_->destroy_stream(stream);
}

}  // namespace
}  // namespace limbo
