// What both sides of child_process.h use: the command-line flag and lines over pipes.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace limbo::testing {

inline constexpr char kChildRoleFlag[] = "--child-role";

// The first whole line of `buffer`, taken out of it; nothing when there is none yet.
[[nodiscard]] std::optional<std::string> take_line(std::string& buffer);
// Appends what can be read from `fd`; waits for it; false at the end.
[[nodiscard]] bool read_more(int fd, std::string& buffer);
// False when nobody reads any more.
[[nodiscard]] bool write_line(int fd, std::string_view line);

}  // namespace limbo::testing
