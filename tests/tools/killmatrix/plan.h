// What is to happen to one incarnation: drawn by the driver before it is born, so that a seed says
// it all.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

#include "tests/tools/killmatrix/options.h"
#include "tests/tools/killmatrix/random.h"

namespace limbo::killmatrix {

enum class Role : std::uint8_t { kProducer, kConsumer };

enum class End : std::uint8_t {
  kKilled,       // SIGKILL at a random moment
  kKilledYoung,  // SIGKILL while it starts
  kFailPoint,    // kills itself at a fail point
  kStopped,      // stops itself at a fail point, goes on or is killed there
  kContextLost,  // SIGKILL after its GPU context was lost (simulated, consumers)
  kParent,       // SIGKILL while a fork child holds its life line, with work on its streams
  kExit,         // _exit in the middle
  kExec,         // replaces itself by another program
  kLeave,        // std::exit, with the drain
};

struct Plan {
  std::uint32_t slot = 0;
  std::uint32_t incarnation = 0;
  Role role = Role::kConsumer;
  std::uint64_t seed = 0;
  End end = End::kKilled;
  std::size_t point = 0;                  // of kFailPoint and kStopped
  std::uint32_t at_passing = 1;           // of it
  std::string fail_points;                // the whole setting
  std::chrono::milliseconds lifetime{0};  // from ready on (kKilledYoung: from birth); then SIGKILL
  std::uint32_t at_action = 0;            // of kExit, kExec, kLeave, kParent
  bool exits = false;                     // at that action, to get to the fail point
  bool loses_context = false;             // at that action
  bool slow_exec = false;                 // the new program lives longer than the grace
  bool small_tables = false;
  bool unmaps_at_once = false;  // a consumer whose import cache keeps nothing
  bool little_memory = false;   // a producer that runs out of it
  bool two_threads = false;
  bool sends_twice = false;  // a producer that sends every message to two
  std::uint32_t slow_writes_one_in = 4;
  std::uint32_t slow_writes_ms = 6;
};

// Whether a process of this role passes the fail point `name` in its own work.
[[nodiscard]] bool belongs_to(Role role, std::string_view name);

// `killed_at` says how often processes died at each fail point: the least visited ones come first.
[[nodiscard]] Plan draw_plan(const Options& options, Random& random, Role role,
                             const std::uint64_t* killed_at);

[[nodiscard]] std::string describe(const Plan& plan);

}  // namespace limbo::killmatrix
