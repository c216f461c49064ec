// Every state that a scenario can come to.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "tests/model/run.h"

namespace limbo::model {

// One step of the model.
struct Move {
  enum class Kind : std::uint8_t {
    kThread,   // the thread makes its next access
    kLanding,  // one of its pending stores lands
    kStream,   // a stream works off its next entry
    kDeath,    // a process is killed
    kQuiet,    // and now none of its work runs any more
  };
  Kind kind = Kind::kThread;
  std::uint8_t who = 0;
  std::uint8_t which = 0;
};

struct Result {
  std::uint64_t states = 0;
  std::uint64_t ends = 0;
  std::uint64_t deepest = 0;
  Rule broken = Rule::kNone;
  std::vector<Move> path;  // to what is broken
  bool complete = true;    // false: given up at the bound
};

// Where it is given up.
struct Bounds {
  std::uint64_t max_states = std::uint64_t{1} << 40;
  std::chrono::seconds at_most = std::chrono::hours(24 * 365);
};

// By `threads` threads.
Result explore(const Scenario& scenario, unsigned threads, const Bounds& bounds);

// The counter-example as a list of steps.
std::string describe(const Scenario& scenario, const std::vector<Move>& path);

}  // namespace limbo::model
