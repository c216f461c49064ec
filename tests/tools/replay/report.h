// What limbo_replay prints.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "tests/tools/replay/player.h"

namespace limbo::replay {

struct Result {
  std::string trace;  // the file's name without its endings
  int threads = 1;
  std::size_t events = 0;           // of all threads
  std::size_t requested_bytes = 0;  // the most at once, as asked for, by all threads at their peaks
  Run run;
  std::size_t limit_bytes = 0;                      // that the run was held to; 0: none
  std::optional<std::size_t> smallest_limit_bytes;  // --find-limit
};

[[nodiscard]] std::string table_of(const std::vector<Result>& results);

// One object, without the end of the line.
[[nodiscard]] std::string json_of(const Result& result, const std::string& device,
                                  const std::string& backend);

}  // namespace limbo::replay
