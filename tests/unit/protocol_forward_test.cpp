// may_forward, one access at a time: what it notes first, and what it believes.
#include <gtest/gtest.h>

#include "ipc/protocol/forward.h"
#include "tests/unit/protocol_support.h"

namespace limbo::protocol::testing {
namespace {

constexpr ClaimTarget kTarget{1, 7};

class ProtocolForward : public ::testing::Test {
 protected:
  ProtocolForward() {
    memory_["e1"] = open_word(7);
    exports_.records[1].in_flight = 1;
  }
  ClaimVerdict ask(std::uint32_t slot = 3) {
    return may_forward(memory_, row_, exports_, slot, kTarget);
  }
  void set_claim(ClaimState state, const ClaimTarget& target = kTarget) {
    memory_["row.claim3"] = claim_bits(target, state);
  }

  RecordingMemory memory_;
  PlainRow row_;
  PlainExports exports_;
};

TEST_F(ProtocolForward, AClaimThatNoPassHasSeenIsNotedFirst) {
  set_claim(ClaimState::kHeld);
  EXPECT_EQ(ask(), ClaimVerdict::kStands);
  EXPECT_EQ(exports_.records[1].held, 1);
  EXPECT_EQ(exports_.records[1].in_flight, 0);
  EXPECT_EQ(row_.mirror(3), claim_bits(kTarget, ClaimState::kHeld));
  EXPECT_EQ(ask(), ClaimVerdict::kStands);
  EXPECT_EQ(exports_.records[1].held, 1);
}

TEST_F(ProtocolForward, AReleasedClaimIsNotedAndRefused) {
  set_claim(ClaimState::kHeld);
  ASSERT_EQ(ask(), ClaimVerdict::kStands);
  set_claim(ClaimState::kReleased);
  EXPECT_EQ(ask(), ClaimVerdict::kGone);
  EXPECT_EQ(exports_.records[1].held, 0);
  EXPECT_EQ(memory_["row.claim3"], 0U);
  EXPECT_EQ(ask(), ClaimVerdict::kGone);
}

// Whatever a broken consumer writes over what it was noted to hold, the mirror is believed.
TEST_F(ProtocolForward, OnlyTheMirrorIsBelieved) {
  set_claim(ClaimState::kHeld, {2, 7});
  memory_["e2"] = open_word(7);
  EXPECT_EQ(ask(), ClaimVerdict::kGone);  // it holds another one
  set_claim(ClaimState::kHeld);
  EXPECT_EQ(ask(), ClaimVerdict::kGone);
  EXPECT_EQ(exports_.records[2].held, 1);
}

TEST_F(ProtocolForward, SlotsThatDoNotExistAreRefusedWithoutALook) {
  EXPECT_EQ(ask(2 * kGroupClaims), ClaimVerdict::kGone);
  EXPECT_TRUE(memory_.accesses.empty());
  EXPECT_EQ(ask(), ClaimVerdict::kGone);  // FREE
}

TEST_F(ProtocolForward, WhatIsDrainingIsNotSentOn) {
  set_claim(ClaimState::kHeld);
  for (const auto& [reason, verdict] : {std::pair(EndReason::kWithdrawn, ClaimVerdict::kWithdrawn),
                                        std::pair(EndReason::kExpired, ClaimVerdict::kExpired)}) {
    memory_["e1"] = encode(ExportWord{7, reason, ExportState::kDraining});
    EXPECT_EQ(ask(), verdict);
  }
  EXPECT_EQ(exports_.records[1].held, 1);  // its holder keeps it
}

}  // namespace
}  // namespace limbo::protocol::testing
