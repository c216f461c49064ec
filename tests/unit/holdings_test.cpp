// Received blocks by address.
#include "ipc/holdings.h"

#include <gtest/gtest.h>

#include <vector>

namespace limbo {
namespace {

class HoldingsTest : public ::testing::Test {
 protected:
  HeldPlace hold(std::size_t begin, std::size_t size_bytes, std::uint32_t slot) {
    Holding holding;
    holding.data = memory_.data() + begin;
    holding.size_bytes = size_bytes;
    holding.claim.slot = slot;
    return {holdings_, std::move(holding)};
  }
  // The slot of what covers the range; -1: nothing does.
  int at(std::size_t begin, std::size_t size_bytes) {
    int slot = -1;
    const bool found = holdings_.find(memory_.data() + begin, size_bytes, [&](const Holding& held) {
      slot = static_cast<int>(held.claim.slot);
    });
    EXPECT_EQ(found, slot >= 0);
    return slot;
  }

  std::vector<std::byte> memory_ = std::vector<std::byte>(10'000);
  Holdings holdings_;
};

TEST_F(HoldingsTest, WhatCoversTheWholeRangeIsFound) {
  EXPECT_EQ(at(0, 1), -1);
  const HeldPlace first = hold(1000, 100, 1);
  const HeldPlace second = hold(2000, 1000, 2);
  EXPECT_EQ(at(1000, 100), 1);
  EXPECT_EQ(at(1050, 50), 1);
  EXPECT_EQ(at(1050, 51), -1);
  EXPECT_EQ(at(999, 1), -1);
  EXPECT_EQ(at(1100, 1), -1);
  EXPECT_EQ(at(2999, 1), 2);
  EXPECT_EQ(at(3000, 1), -1);
}

// A view in the middle of a large block that begins long before it, behind many small ones.
TEST_F(HoldingsTest, ALargeBlockIsFoundBehindSmallOnesInIt) {
  const HeldPlace large = hold(0, 10'000, 7);
  std::vector<HeldPlace> small;
  for (std::uint32_t i = 0; i < 50; ++i) small.push_back(hold(100 * i, 10, 100 + i));
  EXPECT_EQ(at(4950, 20), 7);
  EXPECT_EQ(at(4900, 10), 149);
  EXPECT_EQ(at(9000, 1000), 7);
}

TEST_F(HoldingsTest, WhatHasEndedIsNotFound) {
  HeldPlace one = hold(0, 100, 1);
  HeldPlace same = hold(0, 100, 2);
  one.end();
  one.end();
  EXPECT_EQ(at(0, 100), 2);
  HeldPlace moved = std::move(same);
  EXPECT_EQ(at(0, 100), 2);
  moved = HeldPlace();
  EXPECT_EQ(at(0, 100), -1);
}

}  // namespace
}  // namespace limbo
