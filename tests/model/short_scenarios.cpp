#include "tests/model/scenario.h"

namespace limbo::model {

using protocol::Mistake;

const std::vector<Scenario>& scenarios() {
  static const std::vector<Scenario> all = {
      {.name = "late-opener",
       .what = "a message is opened once more while its owner has let go and closes it",
       .threads = {{"owner", 0, {{Op::kShare, 0}, {Op::kFree, 0}, {Op::kCollect}, {Op::kCollect}}},
                   {"reader", 1, {{Op::kReceive, 0, 0}, {Op::kReleaseHost, 0, 0}}},
                   {"reader again", 1, {{Op::kReceive, 0, 0}, {Op::kReleaseHost, 0, 0}}}},
       .messages = {{.block = 0, .consumers = 1, .promised = 1}},
       .slots_per_group = 2,
       .finds = {Mistake::kNoRecheck, Mistake::kDirtyFirst, Mistake::kScanBeforeClosing,
                 Mistake::kSeenAfterScan, Mistake::kReleaseWithoutDirty}},
  };
  return all;
}

}  // namespace limbo::model
