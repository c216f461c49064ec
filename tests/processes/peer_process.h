// Commands of a peer that concern its process and name none of its blocks: messages, names, options,
// fail points, its end.
#pragma once

#include <optional>
#include <sstream>
#include <string>

namespace limbo::testing {

// The answer; nothing when the command is another's.
[[nodiscard]] std::optional<std::string> run_for_process(const std::string& command,
                                                         std::istringstream& words);

}  // namespace limbo::testing
