// Very many sends from one process to another, while both are watched: what they use must stay flat.
#pragma once

#include <cstdint>
#include <string>

namespace limbo::bench {

// The exit status: 0 when every message arrived with the right data and nothing grew. `leak`: what
// the receiver is to leak now and then ("descriptors", "memory", "events"), which must be seen; empty:
// nothing.
[[nodiscard]] int run_sends(std::uint64_t count, const std::string& json_path,
                            const std::string& leak);

}  // namespace limbo::bench
