// A program that uses the allocator in every way there is, rightly and wrongly.
//
// The input is a list of typed actions (World::act). After every action: the allocator's
// invariants hold, its numbers are those of the model, and what belongs to somebody is not handed
// out again, not written by others, not given back. At the end everything is back with the device.
#include "tests/fuzz/allocator_actions.h"
#include "tests/fuzz/allocator_checkpoints.h"
#include "tests/fuzz/allocator_pools.h"
#include "tests/fuzz/allocator_rules.h"
#include "tests/fuzz/allocator_settings.h"

namespace limbo::fuzz::allocator {

void World::act(Input& input) {
  switch (input.below(30)) {
    case 0:
    case 1:
    case 2:
    case 3:
    case 4:
      return allocate(input);
    case 5:
    case 6:
    case 7:
      return free_own(model_.pick_allocated(input.number()));
    case 8:
      return free_wrongly(input);
    case 9:
    case 10:
      return record(input);
    case 11:
    case 12:
      return stand_or_go(input);
    case 13:
      return capture_or_end(input);
    case 14:
    case 15:
      return pin(input);
    case 16:
      return unpin(input);
    case 17:
      return drain();
    case 18:
      return elsewhere(input);
    case 19:
      return make_room(input);
    case 20:
      return change_policy(input);
    case 21:
      return plan_fault(input);
    case 22:
      return history(input);
    case 23:
      return look(input);
    case 24:
    case 25:
      return go_back(input);
    default:
      return use_pool(input);
  }
}

namespace {

constexpr std::size_t kMostActions = 200;

LIMBO_FUZZ_TARGET(allocator) {
  Input input(bytes);
  World world(input.number());
  for (std::size_t action = 0; action < kMostActions && input.left() > 0; ++action) {
    world.act(input);
    world.check();
  }
  world.end();
}

}  // namespace
}  // namespace limbo::fuzz::allocator
