#include "tests/tools/killmatrix/sabotage.h"

namespace limbo::killmatrix {
namespace {

constexpr Sabotage kNothingSpecial{};

constexpr Sabotage kSabotages[] = {
    // a claim is behind HELD, and looks at the export no more
    {.mistake = "no-recheck", .consumers_delays = ",claim.after_held=delay:3"},
    // a pass between the dirty words and RELEASED; nothing comes behind it at a balance
    {.mistake = "dirty-first",
     .consumers_delays = ",dirty.between_group_and_lease=delay:20",
     .settle_every = 5},
    // a claim between the scan and CLOSING
    {.mistake = "scan-before-closing", .producers_delays = ",close.before_closing=delay:8"},
    // one stream is slow, and the other's higher number lands first
    {.mistake = "shared-timeline", .slow_writes_one_in = 2, .slow_writes_ms = 30},
    // two that have both seen that the name is free
    {.mistake = "names-unlocked", .producers_delays = ",names.after_look=delay:8"},
    // kernels of the dead that are swept already
    {.mistake = "no-lifeline", .parents_one_in = 2},
};

}  // namespace

const Sabotage& sabotage_of(std::string_view mistake) noexcept {
  for (const Sabotage& sabotage : kSabotages) {
    if (sabotage.mistake == mistake) return sabotage;
  }
  return kNothingSpecial;
}

}  // namespace limbo::killmatrix
