// The command line of limbo_replay.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace limbo::replay {

struct Options {
  std::string device = "simulated";  // or "cuda"
  std::string backend = "limbo";     // or "native"
  int threads = 1;
  bool find_limit = false;
  bool json = false;
  // Not 0: hold each trace to 1.01 times this limit, in multiples of what it requests at once.
  double hold_to = 0;
  std::vector<std::filesystem::path> traces;
};

// Nothing after --help, which it prints. Throws std::invalid_argument for what it does not know or
// what does not go together; the text says what there is.
[[nodiscard]] std::optional<Options> parse_options(int argc, char** argv);

}  // namespace limbo::replay
