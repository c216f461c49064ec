// Where the scenarios are written down.
#pragma once

#include <cstdint>
#include <vector>

#include "tests/model/scenario.h"

namespace limbo::model {

// Whose a thread is.
inline constexpr std::uint8_t kProducer = 0;
inline constexpr std::uint8_t kFirst = 1;
inline constexpr std::uint8_t kSecond = 2;
inline constexpr std::uint8_t kThird = 3;

std::vector<Scenario> short_scenarios();  // those of CI
std::vector<Scenario> piece_scenarios();  // a part of them
std::vector<Scenario> name_scenarios();   // another
std::vector<Scenario> long_scenarios();   // larger ones

}  // namespace limbo::model
