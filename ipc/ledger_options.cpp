#include "ipc/ledger_options.h"

#include "allocator/options.h"

namespace limbo {
namespace {

constexpr std::int64_t kDayMs = 24LL * 60 * 60 * 1000;

const Option kExports(
    {"ledger_exports", "", 1, kMostCapacities.exports, 1 << 20,
     "messages of this process that are in flight, open or held at one time, half of "
     "them at most sent on by others; fixed by its first send"});
const Option kPieces(
    {"ledger_pieces", "", 1, kMostCapacities.pieces, 1 << 16,
     "segments of this process that are lent at one time; fixed by its first send"});
const Option kClaims({.name = "ledger_claims",
                      .unit = "",
                      .minimum = protocol::kGroupClaims,
                      .maximum = kMostCapacities.claims,
                      .default_value = 1 << 16,
                      .meaning = "messages of this process that one consumer holds at one time; a "
                                 "multiple of 512; fixed by its first send",
                      .multiple_of = protocol::kGroupClaims});
const Option kTimelines({"ledger_timelines", "", 2, kMostCapacities.timelines, 4096,
                         "streams of this process with sends under way; fixed by its first send"});
const Option kScans({"ledger_scans_per_second", "", 1, 1'000'000'000, 200'000,
                     "groups of 512 claims that are scanned for one consumer; fixed by its first "
                     "send"});
const Option kTimeLimit({"message_time_limit_ms", "ms", 0, 365 * kDayMs, 600'000,
                         "how long an unopened message stays openable after the later of its send "
                         "and its owner's free; read with each send"});

}  // namespace

FixedOptions fix_ledger_options() {
  return {{"ledger_exports", "ledger_pieces", "ledger_claims", "ledger_timelines",
           "ledger_scans_per_second"},
          "This process has begun to lend"};
}

Capacities capacities_from_options() {
  return {.exports = static_cast<std::uint32_t>(kExports.value()),
          .pieces = static_cast<std::uint32_t>(kPieces.value()),
          .claims = static_cast<std::uint32_t>(kClaims.value()),
          .timelines = static_cast<std::uint32_t>(kTimelines.value())};
}

std::chrono::milliseconds default_message_time_limit() {
  return std::chrono::milliseconds(kTimeLimit.value());
}

std::int64_t scans_per_second_from_options() {
  return kScans.value();
}

}  // namespace limbo
