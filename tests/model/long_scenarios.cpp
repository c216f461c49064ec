// Larger scenarios, for a machine with many cores.
#include "tests/model/scenario_lists.h"

namespace limbo::model {

std::vector<Scenario> long_scenarios() {
  return {};
}

const std::vector<Scenario>& scenarios() {
  static const std::vector<Scenario> all = [] {
    std::vector<Scenario> made = short_scenarios();
    for (Scenario& scenario : long_scenarios()) {
      scenario.in_short_run = false;
      made.push_back(std::move(scenario));
    }
    return made;
  }();
  return all;
}

}  // namespace limbo::model
