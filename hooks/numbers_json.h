// What people ask for, as JSON text: capi.h and the operators hand it to Python.
#pragma once

#include <string>

namespace limbo {

[[nodiscard]] std::string holders_json();
[[nodiscard]] std::string stats_json();
[[nodiscard]] std::string options_json();

}  // namespace limbo
