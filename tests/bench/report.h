// The results of the benchmarks, for people and for programs.
#pragma once

#include <string>

#include "tests/bench/benchmarks.h"
#include "tests/bench/machine.h"

namespace limbo::bench {

[[nodiscard]] std::string text_of(const Machine& machine);

// A table of all, and under it, for those that have it, which part of an operation the device's
// calls took.
[[nodiscard]] std::string text_of(const Measurements& results);

[[nodiscard]] std::string json_of(const Machine& machine, const Measurements& results);

// Throws std::runtime_error where it cannot be written.
void write_file(const std::string& path, const std::string& text);

}  // namespace limbo::bench
