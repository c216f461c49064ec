// Recording the history on the simulated device, where torch's own functions for it want a driver.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace limbo {

// The operator sim_record_history: contexts (Python's stacks) at "none", "state", "alloc" or "all";
// nothing: off. Throws Error(kBadArgument) for another word and for a number below 1.
void sim_record_history(std::optional<std::string> contexts, std::int64_t max_entries);

}  // namespace limbo
