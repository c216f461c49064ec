// How many entries of Limbo's own a stream may have.
#include "ipc/stream_room.h"

#include <optional>
#include <utility>
#include <vector>

#include "tests/unit/sim_support.h"

namespace limbo {
namespace {

using namespace limbo::testing;

class StreamRoomTest : public BalancedTest {
 protected:
  using All = std::vector<StreamRoom::Taken>;

  void SetUp() override {
    BalancedTest::SetUp();
    sim_ = make_sim();
    room_.emplace(*sim_);
  }
  void TearDown() override {
    room_.reset();
    sim_.reset();
    BalancedTest::TearDown();
  }
  // None that is a lane's.
  static StreamUse use(std::uint64_t number) { return {{0, nullptr}, 1'000'000 + number}; }
  // Until there is no room, or `most`.
  All take(const std::vector<StreamUse>& streams, bool by_lane, std::size_t most = 1000) {
    All all;
    while (all.size() < most) {
      auto taken = room_->take(streams, by_lane, 0);
      if (!taken) break;
      all.push_back(std::move(*taken));
    }
    return all;
  }
  void give_back(const All& all) {
    for (const StreamRoom::Taken& taken : all) room_->give_back(taken);
  }

  std::unique_ptr<SimDevice> sim_;
  std::optional<StreamRoom> room_;
};

TEST_F(StreamRoomTest, AStreamHasSoManyAndNoMore) {
  for (int round = 0; round < 3; ++round) {
    All first = take({use(1)}, false);
    EXPECT_EQ(first.size(), StreamRoom::kMaxUnlanded);
    // What is refused has taken nothing on the other.
    EXPECT_TRUE(take({use(2), use(1)}, false).empty());
    const All second = take({use(2)}, false);
    EXPECT_EQ(second.size(), StreamRoom::kMaxUnlanded);
    room_->give_back(first.back());
    first.pop_back();
    EXPECT_TRUE(take({use(2), use(1)}, false).empty());
    room_->give_back(take({use(1)}, false).at(0));
    give_back(second);
    const All both = take({use(2), use(1)}, false);
    EXPECT_EQ(both.size(), 1U);
    give_back(first);
    give_back(both);
  }
}

TEST_F(StreamRoomTest, SoHasALaneAndThereAreSoMany) {
  const std::size_t of_a_lane =
      StreamRoom::kMaxUnlanded / 3;  // the batch, and a wait for each stream
  for (int round = 0; round < 2; ++round) {
    All all;
    for (std::uint64_t id = 1;; id += 2) {
      const All one = take({use(id), use(id + 1)}, true, 1);
      if (one.empty()) break;
      all.push_back(one.front());
    }
    EXPECT_EQ(all.size(), StreamRoom::kMaxLanes * of_a_lane);
    give_back(all);
    EXPECT_EQ(sim_->calls(CallKind::kCreateStream), StreamRoom::kMaxLanes);
  }
}

// More entries than there may be, on a lane that has none.
TEST_F(StreamRoomTest, WhatNeedsMoreStartsOnAnEmptyLane) {
  std::vector<StreamUse> streams;
  for (std::uint64_t id = 1; id <= StreamRoom::kMaxUnlanded; ++id) streams.push_back(use(id));
  const All all = take(streams, true);
  EXPECT_EQ(all.size(), StreamRoom::kMaxLanes);
  give_back(all);
}

TEST_F(StreamRoomTest, AnAbandonedLaneIsNotUsedAgain) {
  const auto first = room_->take(std::vector{use(1), use(2)}, true, 0);
  ASSERT_TRUE(first && first->lane);
  room_->abandon(*first);
  const auto second = room_->take(std::vector{use(1), use(2)}, true, 0);
  ASSERT_TRUE(second && second->lane);
  EXPECT_NE(*first->lane, *second->lane);
  room_->give_back(*second);
}

}  // namespace
}  // namespace limbo
