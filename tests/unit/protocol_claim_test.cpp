#include <gtest/gtest.h>

#include "protocol_support.h"

namespace limbo::protocol {
namespace {

using testing::Access;
using testing::open_word;
using testing::PlainRow;
using testing::RecordingMemory;

constexpr auto kRelaxed = std::memory_order_relaxed;
constexpr auto kRelease = std::memory_order_release;
constexpr auto kSeqCst = std::memory_order_seq_cst;

constexpr ClaimTarget kTarget{3, 7};
constexpr auto kNever = [] { return false; };

TEST(ProtocolWords, SurviveTheirEncoding) {
  const ExportWord export_word{kMaxGeneration, EndReason::kExpired, ExportState::kClosing};
  EXPECT_EQ(decode_export(encode(export_word)), export_word);
  const ClaimWord claim_word{kMaxGeneration, kMaxExportIndex, ClaimState::kReleased};
  EXPECT_EQ(decode_claim(encode(claim_word)), claim_word);
  EXPECT_EQ(encode(ClaimWord{}), 0U);
}

TEST(ProtocolClaim, WritesThenDirtiesThenReads) {
  RecordingMemory memory;
  const PlainRow row;
  memory["e3"] = open_word(7);
  EXPECT_EQ(claim(memory, row, 513, "e3", kTarget, kNever), ClaimVerdict::kStands);
  const std::vector<Access> expected{
      {Access::kStore, "row.claim513", kRelaxed, claim_bits(kTarget, ClaimState::kHeld)},
      {Access::kAdd, "row.group1.host", kSeqCst, 1},
      {Access::kAdd, "row.dirty.host", kSeqCst, 1},
      {Access::kLoad, "e3", kSeqCst, open_word(7)},
  };
  EXPECT_EQ(memory.accesses, expected);
}

TEST(ProtocolClaim, ReleaseByTheHostIsFollowedByDirtyWords) {
  RecordingMemory memory;
  const PlainRow row;
  release_by_host(memory, row, 5, kTarget);
  const std::vector<Access> expected{
      {Access::kStore, "row.claim5", kRelease, claim_bits(kTarget, ClaimState::kReleased)},
      {Access::kAdd, "row.group0.host", kRelease, 1},
      {Access::kAdd, "row.dirty.host", kRelease, 1},
  };
  EXPECT_EQ(memory.accesses, expected);
}

TEST(ProtocolClaim, FreeSlotIsReadWithAcquire) {
  RecordingMemory memory;
  const PlainRow row;
  EXPECT_TRUE(slot_is_free(memory, row, 1));
  EXPECT_EQ(memory.accesses.at(0).order, std::memory_order_acquire);
  memory["row.claim1"] = claim_bits(kTarget, ClaimState::kReleased);
  EXPECT_FALSE(slot_is_free(memory, row, 1));
  memory["row.claim1"] = claim_bits(kTarget, ClaimState::kHeld);
  EXPECT_FALSE(slot_is_free(memory, row, 1));
}

struct VerdictCase {
  ExportWord word;
  ClaimVerdict verdict;
};

class ProtocolVerdict : public ::testing::TestWithParam<VerdictCase> {};

TEST_P(ProtocolVerdict, SaysWhatTheWordSays) {
  EXPECT_EQ(verdict_of(GetParam().word, 7), GetParam().verdict);
}

// Every refused claim leaves RELEASED and dirty words behind, so that the producer looks.
TEST_P(ProtocolVerdict, RefusedClaimIsUndone) {
  if (GetParam().verdict == ClaimVerdict::kStands) return;
  RecordingMemory memory;
  const PlainRow row;
  memory["e3"] = encode(GetParam().word);
  EXPECT_NE(claim(memory, row, 0, "e3", kTarget, kNever), ClaimVerdict::kStands);
  EXPECT_EQ(memory["row.claim0"], claim_bits(kTarget, ClaimState::kReleased));
  ASSERT_GE(memory.accesses.size(), 3U);
  EXPECT_EQ(memory.accesses[memory.accesses.size() - 3].word, "row.claim0");
  EXPECT_EQ(memory.accesses[memory.accesses.size() - 2].word, "row.group0.host");
  EXPECT_EQ(memory.accesses[memory.accesses.size() - 1].word, "row.dirty.host");
}

INSTANTIATE_TEST_SUITE_P(
    All, ProtocolVerdict,
    ::testing::Values(
        VerdictCase{{7, EndReason::kClosed, ExportState::kOpen}, ClaimVerdict::kStands},
        VerdictCase{{7, EndReason::kClosed, ExportState::kClosing}, ClaimVerdict::kClosing},
        VerdictCase{{7, EndReason::kWithdrawn, ExportState::kClosing}, ClaimVerdict::kClosing},
        VerdictCase{{7, EndReason::kWithdrawn, ExportState::kDraining}, ClaimVerdict::kWithdrawn},
        VerdictCase{{7, EndReason::kExpired, ExportState::kDraining}, ClaimVerdict::kExpired},
        VerdictCase{{7, EndReason::kClosed, ExportState::kFree}, ClaimVerdict::kGone},
        VerdictCase{{8, EndReason::kClosed, ExportState::kFree}, ClaimVerdict::kGone},
        VerdictCase{{8, EndReason::kWithdrawn, ExportState::kFree}, ClaimVerdict::kWithdrawn},
        VerdictCase{{8, EndReason::kExpired, ExportState::kFree}, ClaimVerdict::kExpired},
        // the reason of another send is not believed
        VerdictCase{{8, EndReason::kWithdrawn, ExportState::kDraining}, ClaimVerdict::kGone},
        VerdictCase{{9, EndReason::kWithdrawn, ExportState::kFree}, ClaimVerdict::kGone},
        VerdictCase{{8, EndReason::kClosed, ExportState::kOpen}, ClaimVerdict::kGone},
        VerdictCase{{6, EndReason::kExpired, ExportState::kFree}, ClaimVerdict::kGone},
        VerdictCase{{7, static_cast<EndReason>(3), ExportState::kDraining}, ClaimVerdict::kGone}));

TEST(ProtocolClaim, WaitsForAClosingThatEndsOpen) {
  RecordingMemory memory;
  const PlainRow row;
  memory["e3"] = encode(ExportWord{7, EndReason::kClosed, ExportState::kClosing});
  int looks = 0;
  const auto verdict = claim(memory, row, 0, "e3", kTarget, [&] {
    if (++looks == 3) memory["e3"] = open_word(7);
    return true;
  });
  EXPECT_EQ(verdict, ClaimVerdict::kStands);
  EXPECT_EQ(looks, 3);
}

// A producer stopped between CLOSING and its verdict: the claimer gives up instead of spinning.
TEST(ProtocolClaim, GivesUpOnAClosingThatDoesNotEnd) {
  RecordingMemory memory;
  const PlainRow row;
  memory["e3"] = encode(ExportWord{7, EndReason::kWithdrawn, ExportState::kClosing});
  int looks = 0;
  EXPECT_EQ(claim(memory, row, 0, "e3", kTarget, [&] { return ++looks < 5; }),
            ClaimVerdict::kWithdrawn);
  EXPECT_EQ(looks, 5);
  EXPECT_EQ(memory["row.claim0"], claim_bits(kTarget, ClaimState::kReleased));
}

std::vector<std::pair<std::string, std::uint64_t>> batch_of(const std::vector<Release>& releases,
                                                            std::size_t room, std::size_t* taken) {
  std::vector<std::pair<std::string, std::uint64_t>> writes;
  std::uint64_t number = 100;
  const PlainRow row("row", 1024);
  *taken = write_release_batch(
      row, releases, room, [&] { return ++number; },
      [&](const std::string& word, std::uint64_t value) { writes.emplace_back(word, value); });
  return writes;
}

TEST(ProtocolRelease, BatchWritesClaimsThenGroupsThenLease) {
  std::size_t taken = 0;
  const std::vector<std::pair<std::string, std::uint64_t>> expected{
      {"row.claim1", claim_bits({0, 5}, ClaimState::kReleased)},
      {"row.claim600", claim_bits({1, 6}, ClaimState::kReleased)},
      {"row.claim2", claim_bits({2, 7}, ClaimState::kReleased)},
      {"row.group0.gpu", 101},
      {"row.group1.gpu", 102},
      {"row.dirty.gpu", 103},
  };
  EXPECT_EQ(batch_of({{1, {0, 5}}, {600, {1, 6}}, {2, {2, 7}}}, 255, &taken), expected);
  EXPECT_EQ(taken, 3U);
}

// A list longer than the driver takes is split; each part has its own dirty words, lease last.
TEST(ProtocolRelease, LongListIsSplit) {
  std::vector<Release> releases;
  for (std::uint32_t i = 0; i < 300; ++i) releases.push_back({i, {i, 1}});
  std::size_t taken = 0;
  auto writes = batch_of(releases, 255, &taken);
  EXPECT_EQ(taken, 253U);
  EXPECT_EQ(writes.size(), 255U);
  EXPECT_EQ(writes.back().first, "row.dirty.gpu");
  writes = batch_of({releases.begin() + 253, releases.end()}, 255, &taken);
  EXPECT_EQ(taken, 47U);
  EXPECT_EQ(writes.size(), 49U);
  EXPECT_EQ(writes.back().first, "row.dirty.gpu");
}

TEST(ProtocolRelease, GroupsCountAsOperations) {
  std::vector<Release> releases;
  for (std::uint32_t i = 0; i < 200; ++i) releases.push_back({i * kGroupClaims, {i, 1}});
  std::size_t taken = 0;
  const auto writes = batch_of(releases, 255, &taken);
  EXPECT_EQ(taken, 127U);
  EXPECT_EQ(writes.size(), 255U);
  EXPECT_TRUE(batch_of(releases, 2, &taken).empty());
  EXPECT_EQ(taken, 0U);
}

TEST(ProtocolPublish, FieldsComeBeforeOpen) {
  RecordingMemory memory;
  ExportFields fields{};
  for (std::size_t i = 0; i < kExportFields; ++i) fields[i] = 10 + i;
  const testing::PlainExportRow row;
  open_export(memory, row, 9, fields);
  ASSERT_EQ(memory.accesses.size(), kExportFields + 1);
  for (std::size_t i = 0; i < kExportFields; ++i) {
    EXPECT_EQ(memory.accesses[i], (Access{Access::kStore, row.field(i), kRelaxed, 10 + i}));
  }
  EXPECT_EQ(memory.accesses.back(), (Access{Access::kStore, "e", kRelease, open_word(9)}));
  EXPECT_EQ(read_fields(memory, row), fields);
}

TEST(ProtocolPublish, OnlyAnOpenExportOfTheGenerationDrains) {
  RecordingMemory memory;
  memory["e"] = open_word(9);
  EXPECT_FALSE(drain_export(memory, "e", 8, EndReason::kWithdrawn));
  EXPECT_TRUE(drain_export(memory, "e", 9, EndReason::kWithdrawn));
  EXPECT_EQ(decode_export(memory["e"]),
            (ExportWord{9, EndReason::kWithdrawn, ExportState::kDraining}));
  EXPECT_FALSE(drain_export(memory, "e", 9, EndReason::kExpired));
}

}  // namespace
}  // namespace limbo::protocol
