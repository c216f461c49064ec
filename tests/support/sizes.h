// Sizes that tests are written in.
#pragma once

#include <cstddef>

namespace limbo::testing {

inline constexpr std::size_t kMiB = std::size_t{1} << 20;

}  // namespace limbo::testing
