// Rows of the table, measured in interleaved rounds: what disturbs a host for a moment disturbs one
// round of some rows, and the best round of each is shown.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace limbo::bench {

enum class Unit {
  kNanoseconds,        // of one operation; less is better
  kMillionsPerSecond,  // of all threads together; more is better
};

struct Measurement {
  std::string name;  // for programs
  std::string what;  // for people
  Unit unit = Unit::kNanoseconds;
  std::optional<double> budget;
  // Does `count` operations (in each of `threads` threads) and returns how many seconds they took.
  std::function<double(std::uint64_t count)> run;
  unsigned threads = 1;

  std::optional<double> best;
  std::string skipped;  // why there is no value

  [[nodiscard]] bool met() const;
};

struct Pace {
  unsigned rounds = 0;
  double round_seconds = 0;  // of one row
};

// Measures every row that has `run`. What a row throws becomes the reason that it has no value.
void measure(std::vector<Measurement>& rows, const Pace& pace);

[[nodiscard]] const char* text_of(Unit unit);
[[nodiscard]] std::string table_of(const std::vector<Measurement>& rows);
[[nodiscard]] std::string json_of(const std::string& backend, const std::string& gpu,
                                  const std::vector<Measurement>& rows);

using Clock = std::chrono::steady_clock;

[[nodiscard]] inline double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

}  // namespace limbo::bench
