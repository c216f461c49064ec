// Where the scenarios are written down.
#pragma once

#include "tests/model/scenario.h"

namespace limbo::model {

std::vector<Scenario> short_scenarios();  // those of CI
std::vector<Scenario> long_scenarios();   // larger ones

}  // namespace limbo::model
