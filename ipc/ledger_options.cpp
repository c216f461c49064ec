#include "ipc/ledger_options.h"

#include <string>

#include "allocator/error.h"
#include "allocator/options.h"

namespace limbo {
namespace {

constexpr std::int64_t kDayMs = 24LL * 60 * 60 * 1000;

const Option kExports({"ledger_exports", "", 1, std::int64_t{1} << protocol::kExportIndexBits,
                       1 << 20,
                       "messages of this process that are in flight, open or held at one time"});
const Option kPieces({"ledger_pieces", "", 1, 1 << 22, 1 << 16,
                      "segments of this process that are lent at one time"});
const Option kClaims({"ledger_claims", "", protocol::kGroupClaims, 1 << 22, 1 << 16,
                      "messages of this process that one consumer holds at one time; a multiple of "
                      "512"});
const Option kTimelines({"ledger_timelines", "", 2, 1 << 20, 4096,
                         "streams of this process with sends under way"});
const Option kScans({"ledger_scans_per_second", "", 1, 1'000'000'000, 200'000,
                     "groups of 512 claims that are scanned for one consumer"});
const Option kTimeLimit({"message_time_limit_ms", "ms", 0, 365 * kDayMs, 600'000,
                         "how long an unopened message stays openable after the later of its send "
                         "and its owner's free"});

}  // namespace

Capacities capacities_from_options() {
  const std::int64_t claims = kClaims.value();
  if (claims % protocol::kGroupClaims != 0) {
    throw Error(ErrorCode::kUnknownOption,
                "Option ledger_claims cannot be " + std::to_string(claims) + ".",
                "Use a multiple of " + std::to_string(protocol::kGroupClaims) + ".");
  }
  return {.exports = static_cast<std::uint32_t>(kExports.value()),
          .pieces = static_cast<std::uint32_t>(kPieces.value()),
          .claims = static_cast<std::uint32_t>(claims),
          .timelines = static_cast<std::uint32_t>(kTimelines.value())};
}

std::chrono::milliseconds default_message_time_limit() {
  return std::chrono::milliseconds(kTimeLimit.value());
}

std::int64_t scans_per_second() {
  return kScans.value();
}

}  // namespace limbo
