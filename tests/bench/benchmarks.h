// The benchmarks: what each measures, and against which budget.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tests/bench/measured_device.h"
#include "tests/bench/samples.h"

namespace limbo::bench {

// Small numbers, only to see that everything works; else what the budgets are about.
struct Scale {
  bool quick = false;

  [[nodiscard]] std::size_t rounds() const noexcept { return quick ? 1 : 5; }
  template <typename Number>
  [[nodiscard]] Number either(Number full, Number small) const noexcept {
    return quick ? small : full;
  }
};

struct Measurement {
  std::string name;
  std::string what;
  Samples samples{};                        // of all rounds but the first, which warms up
  std::optional<std::int64_t> budget_ns{};  // for the median
  // Of one operation, from a round of its own, which the timing makes slower.
  CallTimes calls{};
  std::size_t operations_with_calls = 0;
  // Why the numbers are not about what they should be; empty where they are.
  std::string invalid{};

  [[nodiscard]] bool met() const {
    return invalid.empty() && (!budget_ns || samples.summary().median_ns <= *budget_ns);
  }
};

using Measurements = std::vector<Measurement>;

struct Benchmark {
  std::string name;
  std::string what;  // one line
  Measurements (*run)(const Scale&);
};

[[nodiscard]] const std::vector<Benchmark>& benchmarks();

// measure_*.cpp. Each throws when something does not work; speed is never an error.
[[nodiscard]] Measurements measure_share(const Scale& scale);
[[nodiscard]] Measurements measure_send_behind_work(const Scale& scale);
[[nodiscard]] Measurements measure_receive(const Scale& scale);
[[nodiscard]] Measurements measure_receive_over_link(const Scale& scale);  // none with one GPU
[[nodiscard]] Measurements measure_release_behind_work(const Scale& scale);
[[nodiscard]] Measurements measure_collect(const Scale& scale);
[[nodiscard]] Measurements measure_kill(const Scale& scale);
[[nodiscard]] Measurements measure_device_calls(const Scale& scale);

}  // namespace limbo::bench
