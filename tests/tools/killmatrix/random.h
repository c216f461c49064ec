// Random choices that a seed reproduces.
#pragma once

#include <cstdint>

namespace limbo::killmatrix {

// SplitMix64 (Steele, Lea, Flood 2014).
class Random {
 public:
  explicit Random(std::uint64_t seed) noexcept : state_(seed) {}

  std::uint64_t next() noexcept {
    state_ += 0x9e37'79b9'7f4a'7c15ULL;
    std::uint64_t mixed = state_;
    mixed = (mixed ^ (mixed >> 30)) * 0xbf58'476d'1ce4'e5b9ULL;
    mixed = (mixed ^ (mixed >> 27)) * 0x94d0'49bb'1331'11ebULL;
    return mixed ^ (mixed >> 31);
  }
  // From 0 to below `end`, which is not 0.
  std::uint32_t below(std::uint64_t end) noexcept {
    return static_cast<std::uint32_t>(next() % end);
  }
  std::int64_t between(std::int64_t first, std::int64_t last) noexcept {
    return first + static_cast<std::int64_t>(next() % static_cast<std::uint64_t>(last - first + 1));
  }
  bool one_in(std::uint32_t n) noexcept { return below(n) == 0; }

 private:
  std::uint64_t state_;
};

}  // namespace limbo::killmatrix
