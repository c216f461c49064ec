#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "protocol_support.h"

namespace limbo::protocol {
namespace {

using testing::Access;
using testing::open_word;
using testing::PlainExports;
using testing::PlainRow;
using testing::RecordingMemory;

constexpr auto kNoPatience = [] { return false; };

class ProtocolNote : public ::testing::Test {
 protected:
  ProtocolNote() {
    for (std::uint32_t i = 0; i < exports.capacity(); ++i) {
      memory[exports.word(i)] = open_word(7);
      exports.records[i].in_flight = 1;
    }
  }

  bool note(Look look = Look::kChanged) {
    return note_row(memory, row, exports, std::memory_order_acquire, look);
  }
  void hold_slot(std::uint32_t slot, std::uint32_t index, std::uint64_t generation = 7) {
    hold(memory, row, slot, {index, generation});
  }
  void close(std::initializer_list<std::uint32_t> batch) {
    close_batch(memory, exports, std::vector<std::uint32_t>(batch),
                [&] { return std::vector<PlainRow*>{&row}; });
  }
  ExportWord word(std::uint32_t index) { return decode_export(memory[exports.word(index)]); }
  ClaimState claim_state(std::uint32_t slot) { return decode_claim(memory[row.claim(slot)]).state; }

  RecordingMemory memory;
  PlainRow row;
  PlainExports exports;
};

TEST_F(ProtocolNote, NothingChangedCostsTwoLoads) {
  hold_slot(0, 1);
  ASSERT_TRUE(note());
  memory.accesses.clear();
  EXPECT_TRUE(note());
  EXPECT_EQ(memory.accesses.size(), 2U);
}

TEST_F(ProtocolNote, ReadsLeaseThenGroupThenClaimsOfThatGroupOnly) {
  hold_slot(513, 1);
  memory.accesses.clear();
  ASSERT_TRUE(note());
  std::vector<std::string> order;
  for (const Access& access : memory.accesses) order.push_back(access.word);
  const std::vector<std::string> head{"row.dirty.host", "row.dirty.gpu",   "row.group0.host",
                                      "row.group0.gpu", "row.group1.host", "row.group1.gpu",
                                      "row.claim512"};
  ASSERT_EQ(memory.accesses.size(), 6 + kGroupClaims + 1);  // and the export
  EXPECT_TRUE(std::equal(head.begin(), head.end(), order.begin()));
  for (const Access& access : memory.accesses) EXPECT_EQ(access.order, std::memory_order_acquire);
}

TEST_F(ProtocolNote, HeldThenReleased) {
  hold_slot(4, 1);
  note();
  EXPECT_EQ(exports.records[1].held, 1);
  EXPECT_EQ(exports.records[1].in_flight, 0);
  release_by_host(memory, row, 4, {1, 7});
  memory.accesses.clear();
  note();
  EXPECT_EQ(exports.records[1].held, 0);
  EXPECT_EQ(claim_state(4), ClaimState::kFree);
  EXPECT_EQ(std::count(memory.accesses.begin(), memory.accesses.end(),
                       Access{Access::kStore, "row.claim4", std::memory_order_release, 0}),
            1);
}

TEST_F(ProtocolNote, ClaimThatCameAndWentBetweenTwoLooksCounts) {
  hold_slot(4, 1);
  release_by_host(memory, row, 4, {1, 7});
  note();
  EXPECT_EQ(exports.records[1].in_flight, 0);
  EXPECT_EQ(exports.records[1].held, 0);
  EXPECT_EQ(claim_state(4), ClaimState::kFree);
}

// Trace 2: the time limit has zeroed the count when the claim is noted.
TEST_F(ProtocolNote, CountDoesNotGoBelowZero) {
  hold_slot(4, 1);
  exports.records[1].in_flight = 0;
  note();
  EXPECT_EQ(exports.records[1].in_flight, 0);
  EXPECT_EQ(exports.records[1].held, 1);
}

TEST_F(ProtocolNote, WordsThatNameNoExportDoNotCount) {
  memory[exports.word(2)] = encode(ExportWord{7, EndReason::kClosed, ExportState::kFree});
  hold_slot(0, 2);     // FREE
  hold_slot(1, 1, 6);  // another generation
  hold_slot(2, 4);     // out of bounds
  hold_slot(3, kMaxExportIndex, kMaxGeneration);
  note();
  for (const auto& record : exports.records) {
    EXPECT_EQ(record.held, 0);
    EXPECT_EQ(record.in_flight, 1);
  }
  // Their release frees the slot all the same.
  release_by_host(memory, row, 2, {4, 7});
  note();
  EXPECT_EQ(claim_state(2), ClaimState::kFree);
}

// A slot with a mirror reacts only to RELEASED of what is mirrored.
TEST_F(ProtocolNote, MirrorIsBelievedAndNotTheWord) {
  hold_slot(4, 1);
  note();
  const auto scribble = [&](std::uint64_t bits) {
    memory[row.claim(4)] = bits;
    mark_dirty(memory, row, 4, std::memory_order_release);
    note();
    EXPECT_EQ(exports.records[1].held, 1);
    EXPECT_EQ(exports.records[2].held, 0);
    EXPECT_EQ(exports.records[2].in_flight, 1);
  };
  scribble(0);
  scribble(claim_bits({2, 7}, ClaimState::kHeld));
  scribble(claim_bits({2, 7}, ClaimState::kReleased));
  scribble(claim_bits({1, 8}, ClaimState::kReleased));
  scribble(claim_bits({1, 7}, ClaimState::kHeld));
  scribble(claim_bits({1, 7}, static_cast<ClaimState>(3)));
  memory[row.claim(4)] = claim_bits({1, 7}, ClaimState::kReleased);
  mark_dirty(memory, row, 4, std::memory_order_release);
  note();
  EXPECT_EQ(exports.records[1].held, 0);
}

// Trace 14: last seen is what was read before the scan, so a change during it is found later.
TEST_F(ProtocolNote, ChangeDuringAScanIsFoundByTheNext) {
  hold_slot(4, 1);
  bool done = false;
  memory.before_access = [&](std::size_t, const std::string& accessed) {
    if (done || accessed != "row.claim10") return;
    done = true;  // slot 5 was passed already
    hold(memory, row, 5, {2, 7});
  };
  note();
  ASSERT_TRUE(done);
  EXPECT_EQ(exports.records[2].held, 0);
  note();
  EXPECT_EQ(exports.records[2].held, 1);
}

// The same at every access of a note: another claim, whenever it comes, is found at the latest by
// the note after it.
TEST_F(ProtocolNote, ChangeAtAnyAccessIsFound) {
  std::size_t when = 0;
  for (bool done = true; done; ++when) {
    RecordingMemory fresh;
    PlainRow fresh_row;
    PlainExports fresh_exports;
    fresh[fresh_exports.word(1)] = open_word(7);
    fresh[fresh_exports.word(2)] = open_word(7);
    hold(fresh, fresh_row, 4, {1, 7});
    fresh.accesses.clear();
    done = false;
    fresh.before_access = [&](std::size_t number, const std::string&) {
      if (done || number != when) return;
      done = true;
      hold(fresh, fresh_row, 5, {2, 7});
    };
    note_row(fresh, fresh_row, fresh_exports, std::memory_order_acquire, Look::kChanged);
    if (!done) break;
    note_row(fresh, fresh_row, fresh_exports, std::memory_order_acquire, Look::kChanged);
    EXPECT_EQ(fresh_exports.records[2].held, 1) << when;
  }
  EXPECT_GT(when, kGroupClaims);
}

// Trace 1: a release without dirty words is found by the look that ignores them.
TEST_F(ProtocolNote, ThoroughLookFindsWhatNoDirtyWordTold) {
  hold_slot(4, 1);
  note();
  memory[row.claim(4)] = claim_bits({1, 7}, ClaimState::kReleased);
  note();
  EXPECT_EQ(exports.records[1].held, 1);
  note(Look::kEverything);
  EXPECT_EQ(exports.records[1].held, 0);
}

TEST_F(ProtocolNote, RowWithoutScansLeftIsNotSeenAsDone) {
  hold_slot(4, 1);
  hold_slot(600, 2);
  row.scans_left = 1;
  EXPECT_FALSE(note());
  EXPECT_EQ(exports.records[1].held, 1);
  EXPECT_EQ(exports.records[2].held, 0);
  row.scans_left = 1;
  EXPECT_TRUE(note());
  EXPECT_EQ(exports.records[2].held, 1);
}

TEST_F(ProtocolNote, ClosingStoresAllThenReadsLeasesThenDirtyWords) {
  memory.accesses.clear();
  bool leases_read = false;
  close_batch(memory, exports, std::vector<std::uint32_t>{1, 2}, [&] {
    leases_read = true;
    EXPECT_EQ(word(1).state, ExportState::kClosing);
    EXPECT_EQ(word(2).state, ExportState::kClosing);
    EXPECT_EQ(memory.accesses.size(), 4U);
    return std::vector<PlainRow*>{&row};
  });
  ASSERT_TRUE(leases_read);
  EXPECT_EQ(memory.accesses[1].order, std::memory_order_seq_cst);
  EXPECT_EQ(memory.accesses[3].order, std::memory_order_seq_cst);
  EXPECT_EQ(memory.accesses[4].word, "row.dirty.host");
  EXPECT_EQ(memory.accesses[4].order, std::memory_order_seq_cst);
  EXPECT_EQ(memory.accesses[5].word, "row.dirty.gpu");
  EXPECT_EQ(memory.accesses[5].order, std::memory_order_seq_cst);
  EXPECT_EQ(word(1), (ExportWord{8, EndReason::kClosed, ExportState::kFree}));
  EXPECT_EQ(exports.records[1].closed, 1);
}

// Either the claimer sees CLOSING, or the closer sees the claim: a claim at any access of a
// closing.
TEST_F(ProtocolNote, ClaimAtAnyAccessOfAClosing) {
  int stood = 0;
  int refused = 0;
  for (std::size_t when = 0; when < kGroupClaims + 16; ++when) {
    RecordingMemory fresh;
    PlainRow fresh_row;
    PlainExports fresh_exports;
    fresh[fresh_exports.word(1)] = open_word(7);
    ClaimVerdict verdict = ClaimVerdict::kClosing;
    bool done = false;
    fresh.before_access = [&](std::size_t number, const std::string&) {
      if (done || number != when) return;
      done = true;
      verdict = claim(fresh, fresh_row, 5, "e1", {1, 7}, kNoPatience);
    };
    close_batch(fresh, fresh_exports, std::vector<std::uint32_t>{1},
                [&] { return std::vector<PlainRow*>{&fresh_row}; });
    if (!done) verdict = claim(fresh, fresh_row, 5, "e1", {1, 7}, kNoPatience);
    const bool over = fresh_exports.records[1].closed == 1;
    if (verdict == ClaimVerdict::kStands) {
      ++stood;
      EXPECT_FALSE(over) << when;
      EXPECT_EQ(fresh_exports.records[1].held, 1) << when;
      EXPECT_EQ(decode_export(fresh["e1"]).state, ExportState::kOpen) << when;
    } else {
      ++refused;
      note_row(fresh, fresh_row, fresh_exports, std::memory_order_acquire, Look::kChanged);
      EXPECT_EQ(fresh_exports.records[1].held, 0) << when;
    }
  }
  EXPECT_GT(stood, 0);
  EXPECT_GT(refused, 0);
}

TEST_F(ProtocolNote, ClosingThatFindsAHolderGoesBack) {
  drain_export(memory, exports.word(2), 7, EndReason::kWithdrawn);
  hold_slot(0, 1);
  hold_slot(1, 2);
  close({0, 1, 2});
  EXPECT_EQ(word(0), (ExportWord{8, EndReason::kClosed, ExportState::kFree}));
  EXPECT_EQ(word(1), (ExportWord{7, EndReason::kClosed, ExportState::kOpen}));
  EXPECT_EQ(word(2), (ExportWord{7, EndReason::kWithdrawn, ExportState::kDraining}));
  EXPECT_EQ(exports.records[1].stayed, 1);
  EXPECT_EQ(exports.records[2].stayed, 1);
}

TEST_F(ProtocolNote, ClosingKeepsTheReasonForLateClaimers) {
  drain_export(memory, exports.word(1), 7, EndReason::kExpired);
  close({1});
  EXPECT_EQ(verdict_of(word(1), 7), ClaimVerdict::kExpired);
}

// A row that may not be scanned now never hides a holder: the batch goes back.
TEST_F(ProtocolNote, ClosingWithoutScansLeftGoesBack) {
  hold_slot(0, 2);
  row.scans_left = 0;
  close({1});
  EXPECT_EQ(word(1), (ExportWord{7, EndReason::kClosed, ExportState::kOpen}));
  EXPECT_EQ(exports.records[1].stayed, 1);
  EXPECT_EQ(exports.records[1].closed, 0);
}

TEST_F(ProtocolNote, LastGenerationDoesNotWrap) {
  EXPECT_TRUE(is_last_generation(kMaxGeneration));
  EXPECT_FALSE(is_last_generation(kMaxGeneration - 1));
  const ExportWord last{kMaxGeneration, EndReason::kExpired, ExportState::kClosing};
  EXPECT_EQ(closed(last), (ExportWord{kMaxGeneration, EndReason::kExpired, ExportState::kFree}));
  EXPECT_EQ(verdict_of(closed(last), kMaxGeneration), ClaimVerdict::kExpired);
}

TEST_F(ProtocolNote, SweepTakesEverythingOnceWhateverTheDirtyWordsSay) {
  hold_slot(0, 0);
  note();
  hold_slot(1, 1);                                                     // not noted
  memory[row.claim(700)] = claim_bits({2, 7}, ClaimState::kHeld);      // died before dirty
  memory[row.claim(701)] = claim_bits({3, 7}, ClaimState::kReleased);  // likewise
  memory[row.claim(702)] = claim_bits({3, 6}, ClaimState::kHeld);      // names nothing
  EXPECT_EQ(sweep_row(memory, row, exports), 4U);
  for (const auto& record : exports.records) {
    EXPECT_EQ(record.held, 0);
    EXPECT_EQ(record.in_flight, 0);
  }
  for (const std::uint32_t slot : {0U, 1U, 700U, 701U, 702U}) {
    EXPECT_EQ(claim_state(slot), ClaimState::kFree);
  }
  EXPECT_EQ(sweep_row(memory, row, exports), 0U);
}

// Random words never make a count negative and never free what an honest row holds.
TEST_F(ProtocolNote, HostileRow) {
  PlainRow honest("honest");
  hold(memory, honest, 0, {1, 7});
  note_row(memory, honest, exports, std::memory_order_acquire, Look::kChanged);
  std::mt19937_64 random(20'26);
  for (int round = 0; round < 300; ++round) {
    for (int i = 0; i < 20; ++i) {
      const auto slot = static_cast<std::uint32_t>(random() % (2 * kGroupClaims));
      memory[row.claim(slot)] =
          random() % 2 == 0
              ? random()
              : claim_bits({static_cast<std::uint32_t>(random() % 5), 6 + random() % 3},
                           static_cast<ClaimState>(random() % 4));
    }
    memory[row.group_dirty_gpu(static_cast<std::uint32_t>(random() % 2))] = random();
    memory[row.lease_dirty_gpu()] = random();
    note();
    close({0, 1, 2, 3});
    for (const auto& record : exports.records) {
      ASSERT_GE(record.held, 0);
      ASSERT_GE(record.in_flight, 0);
    }
    ASSERT_GE(exports.records[1].held, 1);
    ASSERT_EQ(word(1).state, ExportState::kOpen);
    for (const std::uint32_t index : {0U, 2U, 3U}) {
      if (word(index).state == ExportState::kFree) memory[exports.word(index)] = open_word(7);
    }
  }
  sweep_row(memory, row, exports);
  EXPECT_EQ(exports.records[1].held, 1);
}

}  // namespace
}  // namespace limbo::protocol
