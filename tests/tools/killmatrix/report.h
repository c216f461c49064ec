// What came of it, for people and for programs.
#pragma once

#include <cstdint>
#include <string>

#include "tests/tools/killmatrix/arena.h"
#include "tests/tools/killmatrix/driver.h"
#include "tests/tools/killmatrix/options.h"

namespace limbo::killmatrix {

// `left_behind`: descriptors and files. Prints the report; its last line is the result. True when
// nothing was lost, early, hung or left behind.
bool report(const Options& options, const Arena& arena, const Result& result,
            std::uint64_t left_behind, double seconds);

}  // namespace limbo::killmatrix
