// What the dead have not written: whoever was let pass without it can know that.
#include "ipc/protocol/timeline.h"
#include "ipc/timelines.h"
#include "tests/unit/producer_support.h"
#include "tests/unit/protocol_support.h"

namespace limbo {
namespace {

using namespace limbo::testing;
using protocol::testing::RecordingMemory;

class EndedWithoutMark : public ProducerTest {
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

  StreamRef streams_[2];
};

// Its owner's work stands still and is given up; the reader's stream passes.
TEST_F(EndedWithoutMark, WhoeverPassesIsToldWhatHasNotCome) {
  Timelines timelines(*sim_, 4);
  const auto& [writer, reader] = streams_;
  const TimelinePoint landed = timelines.advance(writer);
  sim_->synchronize_stream(writer);
  const SimHold hold = sim_->hold_stream(writer);
  const TimelinePoint lost = timelines.advance(writer);
  timelines.wait(reader, lost);
  timelines.end_all();
  sim_->synchronize_stream(reader);
  EXPECT_TRUE(timelines.arrival(lost) == protocol::Arrival::kLost)
      << "its data passes for what was sent";
  EXPECT_FALSE(timelines.arrival(landed) == protocol::Arrival::kLost);
  sim_->release_hold(hold);
}

// Whoever ends it can be stopped, or die, before any of its accesses; whoever waits can look then.
TEST(MarkedAfterEnd, WhoeverPassesIsToldAtOnce) {
  RecordingMemory memory;
  const std::string value = "value";
  const std::string ended_at = "ended_at";
  constexpr std::uint64_t kReached = 4;
  memory[value] = kReached;
  const auto look = [&] {
    RecordingMemory now = memory;
    now.before_access = nullptr;
    const bool passes = now[value] >= kReached + 1;
    EXPECT_EQ(passes && !protocol::ended_before(now, ended_at, kReached + 1), false)
        << "let pass, and not told";
    EXPECT_FALSE(protocol::ended_before(now, ended_at, kReached));
  };
  memory.before_access = [&](std::size_t, const std::string&) { look(); };
  protocol::end_timeline(memory, value, ended_at);
  look();
  EXPECT_EQ(memory[value], protocol::kTimelineEnded);
}

}  // namespace
}  // namespace limbo
