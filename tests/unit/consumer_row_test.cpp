// The host's side of a row: slots go round, first in first out, and are never taken too early; the
// bell at half a row.
#include "ipc/consumer_row.h"

#include <gtest/gtest.h>

#include <vector>

#include "ipc/shared_memory.h"
#include "tests/unit/short_host_memory.h"

namespace limbo {
namespace {

using protocol::ClaimState;
using testing::ShortHostMemory;

class ConsumerRowTest : public ::testing::Test {
 protected:
  static constexpr Capacities kTables{.exports = 8, .pieces = 1, .claims = 512, .timelines = 1};

  void hold(std::uint32_t slot) { store(slot, ClaimState::kHeld); }
  void release(std::uint32_t slot) {
    store(slot, ClaimState::kReleased);
    row_.released(slot);
  }
  void producer_frees(std::uint32_t slot) { row_.view().claim(slot)->store(0); }
  void store(std::uint32_t slot, ClaimState state) {
    row_.view().claim(slot)->store(protocol::claim_bits({1, 7}, state));
  }
  // Takes and holds so many.
  std::vector<std::uint32_t> take(std::size_t count) {
    std::vector<std::uint32_t> slots;
    for (std::size_t i = 0; i < count; ++i) {
      const auto slot = row_.take();
      if (!slot) break;
      hold(*slot);
      slots.push_back(*slot);
    }
    return slots;
  }

  SharedMemory memory_ =
      SharedMemory::create("limbo-test-row", row_layout(kTables).total, ReceiverMay::kWrite);
  ConsumerRow row_{RowView(memory_.data(), kTables)};
};

// The ways back of a slot cannot fail: whoever gives one back has nobody to tell.
TEST_F(ConsumerRowTest, GivingBackTakesNoMemory) {
  std::vector<std::uint32_t> slots = take(512);
  for (const std::uint32_t slot : slots) hold(slot);
  const ShortHostMemory memory(1);
  for (const std::uint32_t slot : slots) {
    release(slot);
    producer_frees(slot);
  }
  const auto first = row_.take();
  ASSERT_TRUE(first);
  row_.untake(*first);
  EXPECT_EQ(row_.take(), first);
  EXPECT_EQ(row_.occupied(), 1U);
  EXPECT_FALSE(memory.failed());
}

TEST_F(ConsumerRowTest, SlotsAreTakenInTheOrderInWhichTheyCameBack) {
  const std::vector<std::uint32_t> slots = take(512);
  ASSERT_EQ(slots.size(), 512U);
  EXPECT_FALSE(row_.take());
  for (const std::uint32_t slot : {9U, 3U, 500U}) {
    release(slot);
    producer_frees(slot);
  }
  for (const std::uint32_t slot : {9U, 3U, 500U}) {
    const auto taken = row_.take();
    ASSERT_TRUE(taken);
    EXPECT_EQ(*taken, slot);
    hold(slot);
  }
  EXPECT_FALSE(row_.take());
  EXPECT_EQ(row_.occupied(), 512U);
}

// RELEASED is not FREE: the producer has not noted it.
TEST_F(ConsumerRowTest, ASlotThatTheProducerHasNotFreedIsNotTaken) {
  const std::vector<std::uint32_t> slots = take(512);
  EXPECT_FALSE(row_.waits_for_producer());  // all are held: the producer can make no room
  release(slots[7]);
  EXPECT_FALSE(row_.take());
  EXPECT_TRUE(row_.waits_for_producer());
  EXPECT_EQ(row_.occupied(), 511U);
  producer_frees(slots[7]);
  EXPECT_EQ(row_.take(), slots[7]);
}

// FREE is not enough either: the release must have been struck off here.
TEST_F(ConsumerRowTest, ASlotWhoseReleaseIsOnItsWayIsNotTaken) {
  const std::vector<std::uint32_t> slots = take(512);
  store(slots[7],
        ClaimState::kReleased);  // its stream has written it, and nobody has seen that yet
  producer_frees(slots[7]);
  EXPECT_TRUE(row_.landed(slots[7]));
  EXPECT_FALSE(row_.take());
  row_.released(slots[7]);
  EXPECT_EQ(row_.take(), slots[7]);
}

// A slot in the middle of the queue that is not freed keeps no others back for ever.
TEST_F(ConsumerRowTest, OneSlowSlotDoesNotHoldUpTheRow) {
  const std::vector<std::uint32_t> slots = take(512);
  for (const std::uint32_t slot : slots) release(slot);
  for (const std::uint32_t slot : slots) {
    if (slot != slots[0]) producer_frees(slot);
  }
  EXPECT_EQ(take(512).size(), 511U);
  EXPECT_FALSE(row_.take());
  producer_frees(slots[0]);
  EXPECT_EQ(row_.take(), slots[0]);
}

TEST_F(ConsumerRowTest, TheBellRingsOnceAtHalfARowThatTheProducerCouldEmpty) {
  const std::vector<std::uint32_t> slots = take(255);
  for (const std::uint32_t slot : slots) release(slot);
  EXPECT_FALSE(row_.half_full());
  EXPECT_FALSE(row_.wants_bell());
  const std::vector<std::uint32_t> one = take(1);
  EXPECT_TRUE(row_.half_full());
  EXPECT_TRUE(row_.wants_bell());
  EXPECT_FALSE(row_.wants_bell());  // it has rung
  // The producer notes the row; the next time that it fills up it rings again.
  for (const std::uint32_t slot : slots) producer_frees(slot);
  (void)take(1);
  EXPECT_FALSE(row_.half_full());
  EXPECT_FALSE(row_.wants_bell());
  release(one[0]);
  (void)take(254);
  EXPECT_TRUE(row_.half_full());
  EXPECT_TRUE(row_.wants_bell());
}

// What is held is nothing that the producer could free.
TEST_F(ConsumerRowTest, TheBellDoesNotRingForARowThatIsFullOfHolders) {
  const std::vector<std::uint32_t> slots = take(512);
  EXPECT_TRUE(row_.half_full());
  EXPECT_FALSE(row_.wants_bell());
  release(slots[0]);
  EXPECT_TRUE(row_.wants_bell());
  EXPECT_TRUE(row_.waits_for_producer());  // somebody waits for room, so it may ring again
  EXPECT_TRUE(row_.wants_bell());
}

TEST_F(ConsumerRowTest, ASlotThatIsGivenBackUnusedIsTheNext) {
  const auto slot = row_.take();
  ASSERT_TRUE(slot);
  row_.untake(*slot);
  EXPECT_EQ(row_.take(), slot);
}

}  // namespace
}  // namespace limbo
