// The ways in which processes of the kill matrix end, each counted as one of its kills.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace limbo::killmatrix {

enum class Way : std::uint8_t {
  kAtRandom,         // SIGKILL by the driver, young ones included
  kAtFailPoint,      // SIGKILL by itself
  kWhileStopped,     // SIGKILL behind SIGSTOP, with no SIGCONT between them
  kWithoutContext,   // SIGKILL behind the loss of its GPU context
  kBeforeForkChild,  // SIGKILL while a fork child has its life line
  kExitAtOnce,       // _exit
  kExit,             // std::exit
  kExec,             // another program in its place, and SIGKILL to that
  kException,        // it could not go on, and says why: something was found
  kHung,             // SIGKILL, since it did not end what it did: counted as hung, too
  kUnplanned,        // by nobody here: something was found
};
inline constexpr std::size_t kWays = 11;

// As --json says it.
inline constexpr std::array<std::string_view, kWays> kWayNames = {
    "sigkill_at_random",
    "sigkill_at_fail_point",
    "sigkill_while_stopped",
    "sigkill_without_context",
    "sigkill_before_fork_child",
    "_exit",
    "exit",
    "exec",
    "exception",
    "sigkill_as_hung",
    "unplanned",
};

}  // namespace limbo::killmatrix
