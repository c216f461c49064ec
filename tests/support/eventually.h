// Waiting for a condition that another thread or process brings about.
#pragma once

#include <chrono>
#include <thread>

#include "tests/support/child_process.h"

namespace limbo::testing {

// True as soon as `condition()` is; false when it was not within `at_most`.
template <typename Condition>
[[nodiscard]] bool eventually(Condition condition, std::chrono::milliseconds at_most = kPatience) {
  const auto deadline = std::chrono::steady_clock::now() + at_most;
  while (!condition()) {
    if (std::chrono::steady_clock::now() >= deadline) return condition();
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

}  // namespace limbo::testing
