// The command line of limbo_bench.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace limbo::bench {

struct Options {
  bool sends = false;             // the many sends, instead of the budgets
  std::string device;             // "auto", "cuda" or "simulated"
  std::vector<std::string> only;  // names of benchmarks; empty: all
  std::string json;               // a file; empty: none
  bool quick = false;
  std::uint64_t count = 1'000'000;  // sends
  std::string leak;                 // what the receiver of sends is to leak; empty: nothing
};

// Nothing when help was asked for, and given. Throws std::invalid_argument.
[[nodiscard]] std::optional<Options> parse_options(int argc, char** argv);

}  // namespace limbo::bench
