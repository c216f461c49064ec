// The scenarios of the short run that map pieces, give them back, and end.
#include "tests/model/scenario_lists.h"

namespace limbo::model {

using protocol::Mistake;

std::vector<Scenario> piece_scenarios() {
  return {
      {.name = "pieces",
       .what = "mapped, released, closed, opened anew, wanted back, returned",
       .threads =
           {{"owner",
             kProducer,
             {{Op::kShare, 0}, {Op::kShare, 1}, {Op::kFree, 0}, {Op::kFree, 1}, {Op::kCollect}}},
            {"allocator", kProducer, {{Op::kReturnPiece}, {Op::kReturnPiece}}, true},
            {"reader",
             kFirst,
             {{Op::kReceive, 0, 0},
              {Op::kReleaseGpu, 0, 0, 0},
              {Op::kReceive, 1, 1},
              {Op::kReleaseHost, 1, 1}}},
            {"unmapper", kFirst, {{Op::kUnmap, 0, 1}, {Op::kUnmap}}, true}},
       .messages = {{.block = 0, .promised = 1}, {.block = 1, .promised = 1}},
       .streams = {kFirst},
       .slots_per_group = 2,
       .blocks = 2,
       .pieces = {0, 0},
       .returns_at_end = true,
       .finds = {Mistake::kCloseWhileLanding, Mistake::kMarkClearedLate}},
      {.name = "pieces-of-two",
       .what = "two processes map a piece; one of them is killed; it is wanted back",
       .threads = {{"owner", kProducer, {{Op::kShare, 0}, {Op::kFree, 0}, {Op::kCollect}}},
                   {"allocator", kProducer, {{Op::kReturnPiece}, {Op::kReturnPiece}}, true},
                   {"reaper", kProducer, {{Op::kSweep, 0}}, true},
                   {"first", kFirst, {{Op::kReceive}, {Op::kReleaseGpu, 0, 0, 0}}},
                   {"first's unmapper", kFirst, {{Op::kUnmap, 0, 1}, {Op::kUnmap}}, true},
                   {"second", kSecond, {{Op::kReceive}, {Op::kReleaseHost}}},
                   {"second's unmapper", kSecond, {{Op::kUnmap, 0, 1}, {Op::kUnmap}}, true}},
       .messages = {{.consumers = 2, .promised = 3}},
       .streams = {kFirst},
       .pieces = {0},
       .connected = 3,
       .may_die = 1 << kFirst,
       .deaths = 1,
       .expires_at_end = true,
       .returns_at_end = true},
      {.name = "exit",
       .what = "a producer that ends waits until what it sent is mapped",
       .threads = {{"owner", kProducer, {{Op::kShare}, {Op::kFree}, {Op::kCollect}, {Op::kExit}}},
                   {"reader", kFirst, {{Op::kReceive}, {Op::kReleaseHost}}}},
       .messages = {{.promised = 1}},
       .pieces = {0},
       .finds = {Mistake::kDrainEndsAtClaimed}},
      {.name = "exit-with-idle-mappings",
       .what = "the last message is of a piece that is mapped and idle, and may be closed",
       .threads = {{"owner",
                    kProducer,
                    {{Op::kShare, 0}, {Op::kShare, 1}, {Op::kFree}, {Op::kExit}}},
                   {"reader",
                    kFirst,
                    {{Op::kReceive, 0, 0},
                     {Op::kReleaseHost, 0, 0},
                     {Op::kReceive, 1, 1},
                     {Op::kReleaseHost, 1, 1}}},
                   {"unmapper", kFirst, {{Op::kUnmap, 0, 1}, {Op::kUnmap, 0, 2}}, true}},
       .messages = {{.promised = 1}, {.promised = 1}},
       .slots_per_group = 2,
       .pieces = {0},
       .finds = {Mistake::kHeldBehindClaim}},
  };
}

}  // namespace limbo::model
