// The kill matrix's command line.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

namespace limbo::killmatrix {

inline constexpr std::uint32_t kAsTheDevice = ~std::uint32_t{0};

struct Options {
  std::uint64_t seed = 1;
  std::uint64_t kills = 1000;
  std::uint32_t consumers = 3;
  std::uint32_t producers = 2;
  std::uint32_t spares = kAsTheDevice;          // of either kind, started ahead
  std::string device = "simulated";             // or "cuda"
  std::optional<std::chrono::seconds> at_most;  // then it ends, however many were killed
  std::uint64_t settle_every = 0;               // kills between two looks at the balance
  std::chrono::milliseconds lifetime{0};        // of a process, on average; 0: the device's
  std::chrono::milliseconds deadline{30'000};   // for everything that must end
  bool json = false;
  bool verbose = false;
  std::string sabotage;   // the mistake to make; empty: none
  bool harmless = false;  // all as with the sabotage, and no mistake
};

// Nothing after --help, which it prints. Throws std::invalid_argument for what it does not know;
// the text names it and says what there is.
[[nodiscard]] std::optional<Options> parse_options(int argc, char** argv);

}  // namespace limbo::killmatrix
