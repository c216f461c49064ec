// Options of the shared tables. Capacities are fixed when a process begins to share.
#pragma once

#include <chrono>
#include <cstdint>

#include "allocator/options.h"
#include "ipc/layout.h"

namespace limbo {

// What the options can be at most: tables of a process are never larger.
inline constexpr Capacities kMostCapacities{
    .exports = std::uint32_t{1} << protocol::kExportIndexBits,
    .pieces = 1U << 22,
    .claims = 1U << 22,
    .timelines = 1U << 20};

// Made before the process's ledger, for which all of them but message_time_limit_ms are read once.
// Throws kUnknownOption where one of them cannot be read.
[[nodiscard]] FixedOptions fix_ledger_options();

// From the options ledger_exports, ledger_pieces, ledger_claims and ledger_timelines. Throws
// kUnknownOption when one cannot be read.
[[nodiscard]] Capacities capacities_from_options();

// Option message_time_limit_ms: how long a message that nobody has opened stays openable after the
// later of its send and its owner's free.
[[nodiscard]] std::chrono::milliseconds default_message_time_limit();

// Option ledger_scans_per_second: how many groups of 512 claims of one consumer are scanned.
[[nodiscard]] std::int64_t scans_per_second_from_options();

}  // namespace limbo
