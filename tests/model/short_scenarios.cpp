// The scenarios of the short run: about a minute together.
#include "tests/model/scenario_lists.h"

namespace limbo::model {

using protocol::Mistake;

namespace {

constexpr std::uint8_t kProducer = 0;
constexpr std::uint8_t kFirst = 1;
constexpr std::uint8_t kSecond = 2;

// ---- claims and closings -----------------------------------------------------------------------

std::vector<Scenario> claims() {
  return {
      {.name = "late-opener",
       .what = "a message is opened once more while its owner has let go and closes it",
       .threads = {{"owner",
                    kProducer,
                    {{Op::kShare}, {Op::kFree}, {Op::kCollect}, {Op::kCollect}}},
                   {"reader", kFirst, {{Op::kReceive}, {Op::kReleaseHost}}},
                   {"reader again", kFirst, {{Op::kReceive}, {Op::kReleaseHost}}}},
       .messages = {{.promised = 1}},
       .slots_per_group = 2,
       .finds = {Mistake::kNoRecheck, Mistake::kDirtyFirst, Mistake::kScanBeforeClosing,
                 Mistake::kSeenAfterScan, Mistake::kReleaseWithoutDirty}},
      {.name = "two-promised",
       .what = "a message for two processes, opened twice by one of them",
       .threads = {{"owner",
                    kProducer,
                    {{Op::kShare}, {Op::kFree}, {Op::kCollect}, {Op::kCollect}}},
                   {"first",
                    kFirst,
                    {{Op::kReceive}, {Op::kReleaseHost}, {Op::kReceive}, {Op::kReleaseHost}}},
                   {"second", kSecond, {{Op::kReceive}, {Op::kReleaseHost}}}},
       .messages = {{.consumers = 2, .promised = 3}},
       .slots_per_group = 2,
       .connected = 3,
       .finds = {Mistake::kClaimsCountedPerOpen}},
      {.name = "owner-holds-on",
       .what = "claimed and noted, and only then freed: no dirty word changes any more",
       .threads = {{"owner",
                    kProducer,
                    {{Op::kShare}, {Op::kCollect}, {Op::kFree}, {Op::kCollect}}},
                   {"reader", kFirst, {{Op::kReceive}, {Op::kReleaseHost}}}},
       .messages = {{.promised = 1}},
       .finds = {Mistake::kDirtyOnlyCandidates}},
      {.name = "next-generation",
       .what = "an export's slot is used for another send while a late opener has the old message",
       .threads =
           {{"owner",
             kProducer,
             {{Op::kShare, 0},
              {Op::kFree, 0},
              {Op::kCollect},
              {Op::kShare, 1},
              {Op::kFree, 1},
              {Op::kCollect}}},
            {"reader",
             kFirst,
             {{Op::kReceive, 0}, {Op::kReleaseHost, 0}, {Op::kReceive, 0}, {Op::kReleaseHost, 0}}},
            {"second", kSecond, {{Op::kReceive, 1}, {Op::kReleaseHost, 1}}}},
       .messages = {{.block = 0, .promised = 1}, {.block = 1, .promised = 2}},
       .slots_per_group = 2,
       .blocks = 2,
       .connected = 3,
       .reads_fields = true},
      {.name = "lease-enters",
       .what = "a process connects and opens while others are being closed",
       .threads = {{"owner",
                    kProducer,
                    {{Op::kShare}, {Op::kFree}, {Op::kCollect}, {Op::kCollect}}},
                   {"first", kFirst, {{Op::kReceive}, {Op::kReleaseHost}}},
                   {"second", kSecond, {{Op::kReceive}, {Op::kReleaseHost}}},
                   {"connections", kProducer, {{Op::kAddLease, 1}}}},
       .messages = {{}},
       .connected = 1,
       .finds = {Mistake::kLeaseListedLate, Mistake::kLeasesBeforeClosing}},
      {.name = "producer-dies",
       .what = "a producer dies or is stopped anywhere: no claimer hangs",
       .threads = {{"owner",
                    kProducer,
                    {{Op::kShare}, {Op::kFree}, {Op::kCollect}, {Op::kCollect}}},
                   {"reader", kFirst, {{Op::kReceive}, {Op::kReleaseHost}}, true},
                   {"reader again", kFirst, {{Op::kReceive}, {Op::kReleaseHost}}, true}},
       .messages = {{.promised = 1}},
       .slots_per_group = 2,
       .may_die = 1,
       .deaths = 1,
       .finds = {Mistake::kClosingWithoutPatience}},
  };
}

// ---- messages that nobody opens ----------------------------------------------------------------

std::vector<Scenario> ends() {
  return {
      {.name = "time-limit",
       .what = "the time is over while the message is being opened, or held",
       .threads = {{"owner", kProducer, {{Op::kShare}, {Op::kFree}, {Op::kCollect}}},
                   {"clock", kProducer, {{Op::kExpire}}},
                   {"reader", kFirst, {{Op::kReceive}, {Op::kReleaseHost}}}},
       .messages = {{.promised = 1}},
       .finds = {Mistake::kTtlOnHeld, Mistake::kCountBelowZero}},
      {.name = "withdraw",
       .what = "a message is taken back while one process holds it and another opens it",
       .threads = {{"owner",
                    kProducer,
                    {{Op::kShare}, {Op::kWithdraw}, {Op::kFree}, {Op::kCollect}}},
                   {"first", kFirst, {{Op::kReceive}, {Op::kReleaseHost}}},
                   {"second", kSecond, {{Op::kReceive}, {Op::kReleaseHost}}}},
       .messages = {{.consumers = 2, .promised = 3}},
       .connected = 3,
       .finds = {Mistake::kWithdrawnStaysClaimable}},
      {.name = "decline",
       .what = "one thread of a process claims, another declines; a second process opens",
       .threads = {{"owner", kProducer, {{Op::kShare}, {Op::kFree}, {Op::kCollect}}},
                   {"connections", kProducer, {{Op::kTakeDecline}}},
                   {"first", kFirst, {{Op::kReceive}, {Op::kReleaseHost}}},
                   {"first too", kFirst, {{Op::kDecline}}},
                   {"second", kSecond, {{Op::kReceive}, {Op::kReleaseHost}}}},
       .messages = {{.consumers = 2, .promised = 3}},
       .connected = 3,
       .finds = {Mistake::kDeclineCountsAgain}},
      {.name = "killed-reader",
       .what = "a reader is killed anywhere; its streams write until it is quiet",
       .threads = {{"owner", kProducer, {{Op::kShare}, {Op::kFree}, {Op::kCollect}}},
                   {"connections", kProducer, {{Op::kSweep, 0}}, true},
                   {"reader", kFirst, {{Op::kReceive}, {Op::kReleaseGpu, 0, 0, 0}}}},
       .messages = {{.promised = 1}},
       .streams = {kFirst},
       .may_die = 1 << kFirst,
       .deaths = 1,
       .expires_at_end = true,
       .finds = {Mistake::kNoLifeline}},
  };
}

// ---- streams -------------------------------------------------------------------------------------

std::vector<Scenario> streams() {
  return {
      {.name = "released-by-streams",
       .what = "two blocks, released by two streams that race",
       .threads =
           {{"owner",
             kProducer,
             {{Op::kShare, 0}, {Op::kShare, 1}, {Op::kFree, 0}, {Op::kFree, 1}, {Op::kCollect}}},
            {"reader",
             kFirst,
             {{Op::kReceive, 0, 0},
              {Op::kReceive, 1, 1},
              {Op::kReleaseGpu, 0, 0, 0},
              {Op::kReleaseGpu, 1, 1, 1}}}},
       .messages = {{.block = 0, .promised = 1}, {.block = 1, .promised = 1}},
       .streams = {kFirst, kFirst},
       .slots_per_group = 2,
       .blocks = 2,
       .finds = {Mistake::kNumberUsedTwice, Mistake::kDirtyFirst}},
      {.name = "one-batch",
       .what = "two blocks in two groups, released by one batch of a stream",
       .threads = {{"owner",
                    kProducer,
                    {{Op::kShare, 0},
                     {Op::kShare, 1},
                     {Op::kFree, 0},
                     {Op::kFree, 1},
                     {Op::kCollect},
                     {Op::kCollect}}},
                   {"reader",
                    kFirst,
                    {{Op::kReceive, 0, 0}, {Op::kReceive, 1, 1}, {Op::kReleaseBoth, 0, 0, 0}}}},
       .messages = {{.block = 0, .promised = 1}, {.block = 1, .promised = 1}},
       .streams = {kFirst},
       .groups = 2,
       .blocks = 2,
       .finds = {Mistake::kDirtyFirst}},
      {.name = "slots-go-round",
       .what = "one slot, used again and again, its releases struck off late",
       .threads = {{"owner", kProducer, {{Op::kShare}, {Op::kCollect}, {Op::kCollect}}},
                   {"reader",
                    kFirst,
                    {{Op::kReceive, 0, 0},
                     {Op::kReleaseGpu, 0, 0, 0},
                     {Op::kReceive, 0, 1},
                     {Op::kReleaseHost, 0, 1},
                     {Op::kPoll},
                     {Op::kReceive, 0, 2},
                     {Op::kReceive, 0, 3},
                     {Op::kReleaseHost, 0, 2},
                     {Op::kReleaseHost, 0, 3}}},
                   {"connections",
                    kProducer,
                    {{Op::kTakeDecline}, {Op::kTakeDecline}, {Op::kTakeDecline}},
                    true}},
       .messages = {{.promised = 1}},
       .streams = {kFirst},
       .finds = {Mistake::kSlotTakenBeforeStrikeOff}},
      {.name = "lost-context",
       .what = "the reader's context is lost with a release under way, which may land all the same",
       .threads = {{"owner",
                    kProducer,
                    {{Op::kShare, 0},
                     {Op::kShare, 1},
                     {Op::kFree, 0},
                     {Op::kFree, 1},
                     {Op::kCollect},
                     {Op::kCollect}}},
                   {"reader",
                    kFirst,
                    {{Op::kReceive, 0, 0},
                     {Op::kReleaseGpu, 0, 0, 0},
                     {Op::kLoseContext},
                     {Op::kReceive, 1, 1},
                     {Op::kReleaseHost, 1, 1}}},
                   {"connections", kProducer, {{Op::kTakeDecline}}, true}},
       .messages = {{.block = 0, .promised = 1}, {.block = 1, .promised = 1}},
       .streams = {kFirst},
       .slots_per_group = 1,
       .blocks = 2,
       .finds = {Mistake::kLostSlotReused}},
      {.name = "two-senders",
       .what = "two threads send from two streams; each reader waits for its own",
       .threads = {{"one", kProducer, {{Op::kWrite, 0, 0, 0}, {Op::kShare, 0}}},
                   {"other", kProducer, {{Op::kWrite, 1, 0, 1}, {Op::kShare, 1}}},
                   {"first", kFirst, {{Op::kReceive, 0, 0, 2}, {Op::kReleaseGpu, 0, 0, 2}}},
                   {"second", kSecond, {{Op::kReceive, 1, 0, 3}, {Op::kReleaseGpu, 1, 0, 3}}}},
       .messages = {{.block = 0, .promised = 1, .current_stream = 0, .home_stream = 0},
                    {.block = 1, .promised = 2, .current_stream = 1, .home_stream = 1}},
       .streams = {kProducer, kProducer, kFirst, kSecond},
       .blocks = 2,
       .connected = 3,
       .finds = {Mistake::kSharedTimeline}},
      {.name = "feeder-thread",
       .what =
           "a block of one stream is sent by a thread that works on another; either has filled it",
       .threads = {{"owner", kProducer, {{Op::kWrite, 0}, {Op::kShare, 0}}},
                   {"reader", kFirst, {{Op::kReceive, 0, 0, 2}, {Op::kReleaseGpu, 0, 0, 2}}}},
       .messages = {{.promised = 1, .current_stream = 1, .home_stream = 0}},
       .streams = {kProducer, kProducer, kFirst},
       .finds = {Mistake::kHomeStreamOnly}},
  };
}

// ---- forwarding ------------------------------------------------------------------------------

std::vector<Scenario> forwards() {
  return {
      {.name = "forward",
       .what = "a holder writes, and sends on; the third process reads what it has written",
       .threads =
           {{"owner", kProducer, {{Op::kWrite, 0, 0, 0}, {Op::kShare, 0}, {Op::kFree}}},
            {"connections", kProducer, {{Op::kTakeForward}, {Op::kTakeBack, 1}}, true},
            {"first",
             kFirst,
             {{Op::kReceive, 0, 0, 1},
              {Op::kWrite, 0, 2, 1},
              {Op::kForward, 1, 0},
              {Op::kReleaseGpu, 0, 0, 1}}},
            {"second", kSecond, {{Op::kReceive, 1, 0, 2}, {Op::kReleaseGpu, 1, 0, 2}}, true}},
       .messages =
           {{.promised = 1, .current_stream = 0, .home_stream = 0},
            {.promised = 2, .current_stream = 1, .home_stream = 1, .forwards = 0, .data = 2}},
       .streams = {kProducer, kFirst, kSecond},
       .connected = 3,
       .finds = {Mistake::kForwardWithoutOwnPoints}},
      {.name = "forward-late",
       .what = "the asker gives up, lets go or dies, and is swept, before the owner gets to it",
       .threads = {{"owner", kProducer, {{Op::kShare, 0}, {Op::kFree}, {Op::kCollect}}},
                   {"connections", kProducer, {{Op::kTakeForward}, {Op::kTakeBack, 1}}, true},
                   {"reaper", kProducer, {{Op::kSweep, 0}}, true},
                   {"first",
                    kFirst,
                    {{Op::kReceive, 0, 0}, {Op::kForward, 1, 0}, {Op::kReleaseHost, 0, 0}}},
                   {"second", kSecond, {{Op::kReceive, 1, 0}, {Op::kReleaseHost, 1, 0}}, true}},
       .messages = {{.promised = 1}, {.promised = 2, .forwards = 0}},
       .connected = 3,
       .may_die = 1 << kFirst,
       .deaths = 1,
       .expires_at_end = true,
       .finds = {Mistake::kForwardWithoutNote}},
  };
}

// ---- the collect lock ------------------------------------------------------------------------

std::vector<Scenario> locks() {
  return {
      {.name = "collects-meet",
       .what = "two threads collect; the one that comes last may find the other at it",
       .threads = {{"sender", kProducer, {{Op::kShare}, {Op::kCollect}, {Op::kCollect}}},
                   {"owner", kProducer, {{Op::kFree}, {Op::kAwaitReaders}, {Op::kCollect}}, true},
                   {"reader", kFirst, {{Op::kReceive}, {Op::kReleaseHost}}, true}},
       .messages = {{.promised = 1}},
       .collects_at_end = false,
       .finds = {Mistake::kAgainLost, Mistake::kCollectGivesUp}},
      {.name = "last-look",
       .what = "one thread collects, another looks for the last time before out-of-memory",
       .threads = {{"owner", kProducer, {{Op::kShare}, {Op::kFree}, {Op::kCollect}}},
                   {"allocator", kProducer, {{Op::kLookThoroughly}}},
                   {"reader", kFirst, {{Op::kReceive}, {Op::kReleaseHost}}}},
       .messages = {{.promised = 1}},
       .finds = {Mistake::kUnpinsNotAwaited}},
  };
}

// ---- pieces ----------------------------------------------------------------------------------------

std::vector<Scenario> pieces() {
  return {
      {.name = "pieces",
       .what = "mapped, released, closed, opened anew, wanted back, returned",
       .threads =
           {{"owner",
             kProducer,
             {{Op::kShare, 0}, {Op::kShare, 1}, {Op::kFree, 0}, {Op::kFree, 1}, {Op::kCollect}}},
            {"allocator", kProducer, {{Op::kReturnPiece}, {Op::kReturnPiece}}, true},
            {"reader",
             kFirst,
             {{Op::kReceive, 0, 0},
              {Op::kReleaseGpu, 0, 0, 0},
              {Op::kReceive, 1, 1},
              {Op::kReleaseHost, 1, 1}}},
            {"unmapper", kFirst, {{Op::kUnmap, 0, 1}, {Op::kUnmap}}, true}},
       .messages = {{.block = 0, .promised = 1}, {.block = 1, .promised = 1}},
       .streams = {kFirst},
       .slots_per_group = 2,
       .blocks = 2,
       .pieces = {0, 0},
       .returns_at_end = true,
       .finds = {Mistake::kCloseWhileLanding, Mistake::kMarkClearedLate}},
      {.name = "exit",
       .what = "a producer that ends waits until what it sent is mapped",
       .threads = {{"owner", kProducer, {{Op::kShare}, {Op::kFree}, {Op::kCollect}, {Op::kExit}}},
                   {"reader", kFirst, {{Op::kReceive}, {Op::kReleaseHost}}}},
       .messages = {{.promised = 1}},
       .pieces = {0},
       .finds = {Mistake::kDrainEndsAtClaimed}},
  };
}

}  // namespace

std::vector<Scenario> short_scenarios() {
  std::vector<Scenario> all;
  for (auto* part : {claims, ends, streams, forwards, locks, pieces}) {
    for (Scenario& scenario : part()) all.push_back(std::move(scenario));
  }
  return all;
}

}  // namespace limbo::model
