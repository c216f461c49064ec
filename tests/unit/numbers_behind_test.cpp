// What memory came behind: of whom, and what becomes of it.
#include "ipc/numbers_behind.h"

#include <gtest/gtest.h>

#include <memory>
#include <utility>
#include <vector>

#include "tests/unit/sim_support.h"

namespace limbo::testing {
namespace {

class NumbersBehindTest : public ::testing::Test {
 protected:
  static constexpr std::uint32_t kTimelines = 4;

  // A forwarder's timelines, as another process has them, and the words that its streams set.
  struct Forwarding {
    Timeline* words = nullptr;
    std::shared_ptr<LeaseTimelines> timelines;
  };
  Forwarding forwarder() {
    auto memory = SharedMemory::create(
        "limbo-test", timelines_bytes(Capacities{.timelines = kTimelines}), ReceiverMay::kWrite);
    auto* const words = static_cast<Timeline*>(memory.data());
    return {words, std::make_shared<LeaseTimelines>(*sim_, std::move(memory), kTimelines)};
  }
  static NumbersBehind& behind(NumbersBehind& numbers, const Forwarding& foreign,
                               std::uint32_t index, std::uint64_t number) {
    std::vector<NumberBehind> one(1);
    one[0].point = {.owner = 1, .index = index, .number = number};
    one[0].foreign = foreign.timelines;
    numbers.set(std::move(one), false);
    return numbers;
  }

  std::unique_ptr<SimDevice> sim_ = make_sim();
};

TEST_F(NumbersBehindTest, WhatDoesNotComeOfAnyMessage) {
  const auto first = forwarder();
  const auto second = forwarder();
  NumbersBehind numbers;
  NumbersBehind younger;
  behind(numbers, first, 0, 1);
  numbers.add_all(behind(younger, second, 0, 1));
  EXPECT_FALSE(numbers.lost());
  second.timelines->complete();
  EXPECT_TRUE(younger.lost());
  EXPECT_TRUE(numbers.lost());
  NumbersBehind other;
  EXPECT_FALSE(behind(other, first, 0, 1).lost());
  other.add_all(numbers);
  EXPECT_TRUE(other.lost());
}

TEST_F(NumbersBehindTest, WhatIsKnownNeverToComeStaysSo) {
  NumbersBehind numbers;
  EXPECT_FALSE(numbers.lost());
  NumbersBehind younger;
  younger.set({}, true);
  numbers.add_all(younger);
  numbers.add_all(NumbersBehind());
  EXPECT_TRUE(numbers.lost());
}

// However often memory comes: of each timeline one number, and none of one that has come.
TEST_F(NumbersBehindTest, DoesNotGrowWithTheMessages) {
  const auto foreign = forwarder();
  NumbersBehind numbers;
  for (std::uint64_t number = 1; number <= 1000; ++number) {
    NumbersBehind younger;
    numbers.add_all(
        behind(younger, foreign, static_cast<std::uint32_t>(number % kTimelines), number));
  }
  EXPECT_EQ(foreign.timelines.use_count(), 1 + kTimelines);
  // The last of each counts: 999 on timeline 3.
  foreign.words[3].value.store(998);
  numbers.add_all(NumbersBehind());
  EXPECT_EQ(foreign.timelines.use_count(), 1 + kTimelines);
  for (std::uint32_t index = 0; index < kTimelines; ++index) {
    foreign.words[index].value.store(1000);
  }
  numbers.add_all(NumbersBehind());
  EXPECT_EQ(foreign.timelines.use_count(), 1);
  foreign.timelines->complete();
  EXPECT_FALSE(numbers.lost());
}

// An earlier number that comes later does not take the place of the last.
TEST_F(NumbersBehindTest, TheLastOfATimelineStands) {
  const auto foreign = forwarder();
  NumbersBehind numbers;
  NumbersBehind earlier;
  behind(numbers, foreign, 1, 7);
  numbers.add_all(behind(earlier, foreign, 1, 5));
  foreign.words[1].value.store(6);
  foreign.timelines->complete();
  EXPECT_FALSE(earlier.lost());
  EXPECT_TRUE(numbers.lost());
}

}  // namespace
}  // namespace limbo::testing
