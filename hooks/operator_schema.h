// The schemas of operators.h by name.
#pragma once

#include <string_view>

namespace limbo {

// The schema of the operator `name`. Throws Error(kInternal) for a name that has none.
[[nodiscard]] const char* schema_of(std::string_view name);

}  // namespace limbo
