// The name of a private pool, as whoever made it chose it. {0, 0} is the default pool: the memory
// that belongs to no private one.
#pragma once

#include <compare>
#include <cstdint>

namespace limbo {

struct PoolId {
  std::uint64_t first = 0;
  std::uint64_t second = 0;

  [[nodiscard]] constexpr bool is_default() const noexcept { return first == 0 && second == 0; }
  friend constexpr auto operator<=>(const PoolId&, const PoolId&) = default;
};

}  // namespace limbo
