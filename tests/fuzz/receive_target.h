#pragma once

namespace limbo::fuzz {

// Throws RuleBroken when the forged descriptors so far have left anything behind. The target does it
// itself after every so many.
void check_receive_balance();

}  // namespace limbo::fuzz
