// The scenarios of names: processes that publish and end, in every way.
#include "tests/model/scenario_lists.h"

namespace limbo::model {

using protocol::Mistake;

namespace {

constexpr std::uint8_t kAll = 1U << kFirst | 1U << kSecond | 1U << kThird;

}  // namespace

std::vector<Scenario> name_scenarios() {
  return {
      {.name = "name-of-the-dead",
       .what = "three processes take one name and give it up, and any of them dies",
       .threads = {{"first", kFirst, {{Op::kTakeName}, {Op::kGiveUpName}}},
                   {"second", kSecond, {{Op::kTakeName}, {Op::kGiveUpName}}},
                   {"third", kThird, {{Op::kTakeName}, {Op::kGiveUpName}}}},
       .messages = {},
       .blocks = 0,
       .connected = 0,
       .may_die = kAll,
       .deaths = 3,
       .collects_at_end = false,
       .finds = {Mistake::kNamesUnlocked}},
      {.name = "name-of-the-ending",
       .what = "a process ends, and gives its name up when others take it for dead already",
       .threads = {{"ending", kFirst, {{Op::kTakeName}, {Op::kCloseSocket}, {Op::kGiveUpName}}},
                   {"second", kSecond, {{Op::kTakeName}, {Op::kGiveUpName}, {Op::kTakeName}}}},
       .messages = {},
       .blocks = 0,
       .connected = 0,
       .may_die = kAll,
       .deaths = 1,
       .collects_at_end = false,
       .finds = {Mistake::kNamesUnlocked}},
  };
}

}  // namespace limbo::model
