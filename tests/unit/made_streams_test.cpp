// Streams of Limbo's own: one that is made and finds no place is not left behind.
#include "ipc/joining_streams.h"
#include "ipc/stream_room.h"
#include "tests/unit/short_host_memory.h"
#include "tests/unit/sim_support.h"

namespace limbo {
namespace {

using namespace limbo::testing;

class MadeStreams : public BalancedTest {
 protected:
  void SetUp() override {
    BalancedTest::SetUp();
    sim_ = make_sim();
    device_.emplace(*sim_);
    sim_->reset_calls();
  }
  void TearDown() override {
    device_.reset();
    sim_.reset();
    BalancedTest::TearDown();
  }
  // How many there are.
  std::uint64_t streams() {
    return sim_->calls(CallKind::kCreateStream) - sim_->calls(CallKind::kDestroyStream);
  }

  std::unique_ptr<SimDevice> sim_;
  std::optional<RobustDevice> device_;
};

TEST_F(MadeStreams, ALaneThatFindsNoPlaceIsDestroyed) {
  StreamRoom room(*device_);
  const StreamUse use{{0, nullptr}, 1};
  sim_->faults().add("stream_id:1=fail");
  EXPECT_DEVICE_ERROR((void)room.take({&use, 1}, true, 0), "");
  EXPECT_EQ(streams(), 0U);
  with_ever_more_memory([&] {
    if (const auto taken = room.take({&use, 1}, true, 0)) room.give_back(*taken);
  });
  EXPECT_EQ(streams(), 1U);
}

TEST_F(MadeStreams, OneThatJoinsOthersAndFindsNoPlaceIsDestroyed) {
  const StreamRef joined[] = {
      {0, sim_->create_stream(0)}, {0, sim_->create_stream(0)}, {0, sim_->create_stream(0)}};
  {
    Timelines timelines(*device_, 512);
    JoiningStreams joining(*device_, timelines);
    with_ever_more_memory([&] {
      (void)joining.advance(joined);
      sim_->wait_until_idle();
    });
    EXPECT_EQ(streams(), 4U);
    sim_->wait_until_idle();
  }
  for (const StreamRef stream : joined) sim_->destroy_stream(stream);
  EXPECT_EQ(streams(), 0U);
}

}  // namespace
}  // namespace limbo
