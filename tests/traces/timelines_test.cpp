// The order of a sender's work and a reader's, by timelines.
#include "ipc/timelines.h"
#include "tests/unit/producer_support.h"

namespace limbo {
namespace {

using namespace limbo::testing;

class SharedTimeline : public ProducerTest {
 protected:
  void SetUp() override {
    ProducerTest::SetUp();
    for (StreamRef& stream : streams_) stream = {0, sim_->create_stream(0)};
  }
  void TearDown() override {
    sim_->wait_until_idle();
    for (const StreamRef stream : streams_) sim_->destroy_stream(stream);
    ProducerTest::TearDown();
  }

  StreamRef streams_[3];
};

// One stream stands still before its number; another one's higher number must not speak for it.
TEST_F(SharedTimeline, ANumberOfOneStreamDoesNotSpeakForAnother) {
  Timelines timelines(*sim_, 4);
  const auto& [slow, fast, reader] = streams_;
  const SimHold hold = sim_->hold_stream(slow);
  const TimelinePoint earlier = timelines.advance(slow);
  const TimelinePoint later = timelines.advance(fast);
  sim_->synchronize_stream(fast);
  EXPECT_TRUE(timelines.reached(later));
  EXPECT_FALSE(timelines.reached(earlier));
  sim_->release_hold(hold);
  sim_->synchronize_stream(slow);
  EXPECT_TRUE(timelines.reached(earlier));
}

// The same with data: what a reader's stream copies behind the wait is what the sender had queued.
TEST_F(SharedTimeline, AReaderDoesNotReadAheadOfTheSendersWork) {
  Timelines timelines(*sim_, 4);
  const auto& [slow, fast, reader] = streams_;
  std::byte* block = allocate();
  std::byte* copy = allocate();
  sim_->fill(reader, block, 1, 1024);
  sim_->synchronize_stream(reader);
  const SimHold hold = sim_->hold_stream(slow);
  sim_->fill(slow, block, 2, 1024);
  const TimelinePoint sent = timelines.advance(slow);
  (void)timelines.advance(fast);
  sim_->synchronize_stream(fast);
  timelines.wait(reader, sent);
  sim_->copy(reader, copy, block, 4096);
  const EventHandle copied = sim_->create_event(0);
  sim_->record_event(reader, copied);
  EXPECT_FALSE(eventually([&] { return sim_->query_event(0, copied); }, milliseconds(50)));
  sim_->release_hold(hold);
  for (const std::uint32_t word : read_words(*sim_, reader, copy, 1024)) ASSERT_EQ(word, 2U);
  sim_->synchronize_stream(slow);
  sim_->destroy_event(0, copied);
  allocator_->free(block);
  allocator_->free(copy);
}

}  // namespace
}  // namespace limbo
