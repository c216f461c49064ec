#include "tests/tools/killmatrix/sabotage.h"

namespace limbo::killmatrix {
namespace {

constexpr Sabotage kNothingSpecial{};

constexpr Sabotage kSabotages[] = {
    // a time limit that ends what is held
    {.mistake = "ttl-on-held", .harm = Harm::kEarly},
    // kernels of the dead that are swept already
    {.mistake = "no-lifeline", .harm = Harm::kEarly, .parents_one_in = 2},
    // a claim is behind HELD, and looks at the export no more
    {.mistake = "no-recheck",
     .harm = Harm::kEarly,
     .consumers_delays = ",claim.after_held=delay:3"},
    // a pass between the dirty words and RELEASED; nothing comes behind it at a balance
    {.mistake = "dirty-first",
     .harm = Harm::kNotBack,
     .consumers_delays = ",dirty.between_group_and_lease=delay:20",
     .settle_every = 5},
    // a claim between the scan and CLOSING, by somebody who was not promised the block
    {.mistake = "scan-before-closing",
     .harm = Harm::kEarly,
     .producers_delays = ",close.before_closing=delay:8",
     .sends_twice = true},
    // one stream is slow, and the other's higher number lands first
    {.mistake = "shared-timeline",
     .harm = Harm::kEarly,
     .slow_writes_one_in = 2,
     .slow_writes_ms = 30},
    // two that have both seen that the name is free
    {.mistake = "names-unlocked",
     .harm = Harm::kName,
     .producers_delays = ",names.after_look=delay:8"},
};

}  // namespace

const Sabotage& sabotage_of(std::string_view mistake) noexcept {
  for (const Sabotage& sabotage : kSabotages) {
    if (sabotage.mistake == mistake) return sabotage;
  }
  return kNothingSpecial;
}

}  // namespace limbo::killmatrix
