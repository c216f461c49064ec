// The demo's command line.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

namespace limbo::demo {

struct Options {
  std::string device = "auto";  // "auto", "cuda" or "simulated"
  std::chrono::milliseconds duration{5000};
  std::uint64_t most_lent = 0;  // 0: no limit
};

// Nothing after --help, which it prints. Throws std::invalid_argument for what it does not know;
// the text names it and lists what there is. The device is LIMBO_DEVICE's where none is given.
[[nodiscard]] std::optional<Options> parse_options(int argc, char** argv);

// The device that is meant: "cuda" or "simulated". `why` says why "auto" did not take CUDA.
[[nodiscard]] std::string chosen_device(const Options& options, std::string& why);

}  // namespace limbo::demo
