// The shared words of the sharing protocol: what bits they have and what they mean.
// Who may change them from what to what stands beside the functions that do (claim.h, close.h, ...).
#pragma once

#include <cstdint>

namespace limbo::protocol {

inline constexpr unsigned kGenerationBits = 38;
inline constexpr unsigned kExportIndexBits = 24;
inline constexpr std::uint64_t kMaxGeneration = (std::uint64_t{1} << kGenerationBits) - 1;
inline constexpr std::uint32_t kMaxExportIndex = (std::uint32_t{1} << kExportIndexBits) - 1;

// Claims per group: the unit that a dirty word covers.
inline constexpr std::uint32_t kGroupClaims = 512;
// A model, which looks at every slot again and again, has rows with smaller groups.
template <class Row>
inline constexpr std::uint32_t kGroupClaimsOf = kGroupClaims;

// A timeline at this value lets every wait pass (the driver's comparison is signed and cyclic, so
// the largest value would not).
inline constexpr std::uint64_t kTimelineEnded = std::uint64_t{1} << 62;

// ---- export word: generation (38) | reason (2) | state (3) ------------------------------------

enum class ExportState : std::uint8_t { kFree = 0, kOpen = 1, kDraining = 2, kClosing = 3 };

// Why an export is over. Believed only with the descriptor's generation, or one higher and kFree.
enum class EndReason : std::uint8_t { kClosed = 0, kWithdrawn = 1, kExpired = 2 };

struct ExportWord {
  std::uint64_t generation = 0;
  EndReason reason = EndReason::kClosed;
  ExportState state = ExportState::kFree;

  friend constexpr bool operator==(const ExportWord&, const ExportWord&) = default;
};

constexpr std::uint64_t encode(const ExportWord& word) noexcept {
  return (word.generation << 5) | (static_cast<std::uint64_t>(word.reason) << 3) |
         static_cast<std::uint64_t>(word.state);
}

constexpr ExportWord decode_export(std::uint64_t bits) noexcept {
  return {(bits >> 5) & kMaxGeneration, static_cast<EndReason>((bits >> 3) & 3),
          static_cast<ExportState>(bits & 7)};
}

// ---- claim word: generation (38) | export index (24) | state (2) ------------------------------

enum class ClaimState : std::uint8_t { kFree = 0, kHeld = 1, kReleased = 2 };

struct ClaimWord {
  std::uint64_t generation = 0;
  std::uint32_t export_index = 0;
  ClaimState state = ClaimState::kFree;

  friend constexpr bool operator==(const ClaimWord&, const ClaimWord&) = default;
};

constexpr std::uint64_t encode(const ClaimWord& word) noexcept {
  return (word.generation << (kExportIndexBits + 2)) |
         (static_cast<std::uint64_t>(word.export_index) << 2) |
         static_cast<std::uint64_t>(word.state);
}

constexpr ClaimWord decode_claim(std::uint64_t bits) noexcept {
  return {bits >> (kExportIndexBits + 2), static_cast<std::uint32_t>((bits >> 2) & kMaxExportIndex),
          static_cast<ClaimState>(bits & 3)};
}

// ---- upstream word of an export: lost (1) | count (31) | first row + 1 (32) --------------------

// What a message is made of that had not come when it was sent on (upstream.h).
struct UpstreamWord {
  bool lost = false;        // something will never come; then there are no rows
  std::uint32_t count = 0;  // numbers, one a row
  std::uint32_t first = 0;  // + 1; 0: none

  friend constexpr bool operator==(const UpstreamWord&, const UpstreamWord&) = default;
};

constexpr std::uint64_t encode(const UpstreamWord& word) noexcept {
  return (std::uint64_t{word.lost} << 63) | (std::uint64_t{word.count} << 32) | word.first;
}

constexpr UpstreamWord decode_upstream(std::uint64_t bits) noexcept {
  return {(bits >> 63) != 0, static_cast<std::uint32_t>((bits >> 32) & 0x7fff'ffffU),
          static_cast<std::uint32_t>(bits & 0xffff'ffffU)};
}

}  // namespace limbo::protocol
