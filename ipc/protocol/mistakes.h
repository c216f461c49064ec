// The mistakes that the protocol forbids: each was made by a draft of it, and the line of code that
// keeps the protocol from one of them can be found by its name.
//
// The product makes none: `makes` is a constant, and costs nothing. The tests build the library
// once more with LIMBO_WITH_MISTAKES, where the environment variable LIMBO_MISTAKE names the one to
// make; so every rule has a test that is seen to fail where the rule is broken (tests/traces), and
// the model and the kill matrix are seen to find it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#ifdef LIMBO_WITH_MISTAKES
#include <atomic>
#include <cstdio>
#include <cstdlib>
#endif

namespace limbo::protocol {

enum class Mistake : std::uint8_t {
  kNone,
  // time limits and promises
  kTtlOnHeld,
  kCountBelowZero,
  kClaimsCountedPerOpen,
  kDeclineCountsAgain,
  kWithdrawnStaysClaimable,
  // claiming and releasing
  kReleaseWithoutDirty,
  kDirtyFirst,
  kNumberUsedTwice,
  kNoRecheck,
  kClosingWithoutPatience,
  kSlotTakenBeforeStrikeOff,
  kLostSlotReused,
  kGlobalCaptureMode,
  // collecting and closing
  kCollectGivesUp,
  kAgainLost,
  kUnpinsNotAwaited,
  kSeenAfterScan,
  kScanBeforeClosing,
  kLeasesBeforeClosing,
  kLeaseListedLate,
  kDirtyOnlyCandidates,
  // pieces
  kCloseWhileLanding,
  kMarkClearedLate,
  kDrainEndsAtClaimed,
  kHeldBehindClaim,
  // timelines and forwarding
  kSharedTimeline,
  kHomeStreamOnly,
  kForwardWithoutNote,
  kForwardWithoutOwnPoints,
  kUpstreamForgotten,
  kUnheardAnswerKept,
  kEndedWithoutMark,
  kMarkedAfterEnd,
  // death and names
  kNoLifeline,
  kChildDropsLifeLine,
  kNamesUnlocked,
};

struct MistakeName {
  Mistake mistake;
  std::string_view name;
  std::string_view what;
};

// A line each: CMake reads the names from here.
inline constexpr MistakeName kMistakes[] = {
    {Mistake::kTtlOnHeld, "ttl-on-held", "a time limit also ends what is held"},
    {Mistake::kCountBelowZero, "count-below-zero", "a late claim takes one off a count of zero"},
    {Mistake::kClaimsCountedPerOpen, "claims-counted-per-open", "one process uses up two promises"},
    {Mistake::kDeclineCountsAgain, "decline-counts-again", "a claim and a decline count twice"},
    {Mistake::kWithdrawnStaysClaimable, "withdrawn-stays-claimable", "withdrawn while it is held"},
    {Mistake::kReleaseWithoutDirty, "release-without-dirty", "the host's release is not announced"},
    {Mistake::kDirtyFirst, "dirty-first", "the dirty words are written before RELEASED"},
    {Mistake::kNumberUsedTwice, "number-used-twice", "a stream sets a dirty word to an old number"},
    {Mistake::kNoRecheck, "no-recheck", "the export is not read again behind HELD"},
    {Mistake::kClosingWithoutPatience, "closing-without-patience",
     "CLOSING is waited for without end"},
    {Mistake::kSlotTakenBeforeStrikeOff, "slot-taken-before-strike-off",
     "a slot is used too early"},
    {Mistake::kLostSlotReused, "lost-slot-reused", "a slot with a batch under way is used again"},
    {Mistake::kGlobalCaptureMode, "global-capture-mode", "a background call breaks a capture"},
    {Mistake::kCollectGivesUp, "collect-gives-up", "a collect that meets another asks for nothing"},
    {Mistake::kAgainLost, "again-lost", "the unlock does not look whether somebody asked"},
    {Mistake::kUnpinsNotAwaited, "unpins-not-awaited", "the last look does not wait for unpins"},
    {Mistake::kSeenAfterScan, "seen-after-scan", "last seen is what the scan's end reads"},
    {Mistake::kScanBeforeClosing, "scan-before-closing", "rows are noted before CLOSING is stored"},
    {Mistake::kLeasesBeforeClosing, "leases-before-closing",
     "the leases are listed before CLOSING"},
    {Mistake::kLeaseListedLate, "lease-listed-late", "a lease is listed after it was handed out"},
    {Mistake::kDirtyOnlyCandidates, "dirty-only-candidates", "a free makes no candidate"},
    {Mistake::kCloseWhileLanding, "close-while-landing",
     "a mapping is closed before the release lands"},
    {Mistake::kMarkClearedLate, "mark-cleared-late", "the mark of a piece opened anew is cleared"},
    {Mistake::kDrainEndsAtClaimed, "drain-ends-at-claimed",
     "the exit does not wait for the mapping"},
    {Mistake::kHeldBehindClaim, "held-behind-claim",
     "a mapping is closed while a claim is on its way to it"},
    {Mistake::kSharedTimeline, "shared-timeline", "two streams advance one timeline"},
    {Mistake::kHomeStreamOnly, "home-stream-only", "a send orders the block's home stream alone"},
    {Mistake::kForwardWithoutNote, "forward-without-note", "a swept claim is sent on"},
    {Mistake::kForwardWithoutOwnPoints, "forward-without-own-points", "a forwarder orders nothing"},
    {Mistake::kUpstreamForgotten, "upstream-forgotten",
     "a message does not say whose numbers its forwarder's comes behind"},
    {Mistake::kUnheardAnswerKept, "unheard-answer-kept",
     "what was made for one who has not heard of it is not withdrawn"},
    {Mistake::kEndedWithoutMark, "ended-without-mark",
     "nobody writes down how far an ended timeline had got"},
    {Mistake::kMarkedAfterEnd, "marked-after-end", "waits pass before that is written down"},
    {Mistake::kNoLifeline, "no-lifeline", "the sweep does not wait for the life line"},
    {Mistake::kChildDropsLifeLine, "child-drops-life-line",
     "a child with the driver's files lets go"},
    {Mistake::kNamesUnlocked, "names-unlocked", "a name is looked at and taken without the lock"},
};

#ifdef LIMBO_WITH_MISTAKES
inline Mistake mistake_named(std::string_view name) noexcept {
  for (const MistakeName& entry : kMistakes) {
    if (entry.name == name) return entry.mistake;
  }
  std::fprintf(stderr, "limbo: LIMBO_MISTAKE: there is no mistake \"%.*s\"\n",
               static_cast<int>(name.size()), name.data());
  std::_Exit(2);
}

inline Mistake mistake_of_environment() noexcept {
  const char* name = std::getenv("LIMBO_MISTAKE");
  return name == nullptr || *name == '\0' ? Mistake::kNone : mistake_named(name);
}

// The one mistake that is made.
inline std::atomic<Mistake> g_mistake{mistake_of_environment()};

inline bool makes(Mistake mistake) noexcept {
  return g_mistake.load(std::memory_order_relaxed) == mistake;
}
#else
constexpr bool makes(Mistake) noexcept {
  return false;
}
#endif

}  // namespace limbo::protocol
