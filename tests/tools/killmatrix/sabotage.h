// What each mistake must do, and what opens its window: slow fail points, and more of what the
// mistake breaks.
#pragma once

#include <cstdint>
#include <string_view>

#include "tests/tools/killmatrix/arena.h"

namespace limbo::killmatrix {

struct Sabotage {
  std::string_view mistake;
  Harm harm = Harm::kNone;              // that it must be seen to do; none: any
  std::string_view producers_delays{};  // fail points, each with a comma before it
  std::string_view consumers_delays{};
  std::uint32_t parents_one_in = 0;  // so many die before a fork child, with work under way
  bool sends_twice = false;          // every message is opened twice, though promised once
  std::uint32_t slow_writes_one_in = 4;
  std::uint32_t slow_writes_ms = 6;  // at most
  std::uint64_t settle_every = 50;
};

// Nothing special for a mistake that is not known here, nor for none.
[[nodiscard]] const Sabotage& sabotage_of(std::string_view mistake) noexcept;

}  // namespace limbo::killmatrix
