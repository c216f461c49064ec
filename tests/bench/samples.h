// Times of single operations, and what they come to.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace limbo::bench {

using Clock = std::chrono::steady_clock;

inline std::int64_t ns_since(Clock::time_point start) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - start).count();
}

// In nanoseconds. `last`: of the operation that was done last.
struct Summary {
  std::size_t count = 0;
  std::int64_t median_ns = 0;
  std::int64_t p99_ns = 0;
  std::int64_t longest_ns = 0;
  std::int64_t last_ns = 0;
};

class Samples {
 public:
  void add(std::int64_t ns) { ns_.push_back(ns); }
  void add(const Samples& others) { ns_.insert(ns_.end(), others.ns_.begin(), others.ns_.end()); }
  [[nodiscard]] const std::vector<std::int64_t>& all() const noexcept { return ns_; }

  [[nodiscard]] Summary summary() const {
    if (ns_.empty()) return {};
    std::vector<std::int64_t> sorted = ns_;
    std::sort(sorted.begin(), sorted.end());
    return {.count = sorted.size(),
            .median_ns = sorted[sorted.size() / 2],
            .p99_ns = sorted[(sorted.size() * 99 - 1) / 100],
            .longest_ns = sorted.back(),
            .last_ns = ns_.back()};
  }

 private:
  std::vector<std::int64_t> ns_;
};

// Times `operation` once and hands on what it returns.
template <typename Operation>
auto timed(Samples& samples, Operation&& operation) {
  const auto start = Clock::now();
  if constexpr (std::is_void_v<decltype(operation())>) {
    operation();
    samples.add(ns_since(start));
  } else {
    auto result = operation();
    samples.add(ns_since(start));
    return result;
  }
}

}  // namespace limbo::bench
