// What people ask for, as JSON text: capi.h and the operators hand it to Python.
#pragma once

#include <string>

#include "ipc/sharing.h"

namespace limbo {

// 32 hexadecimal digits.
[[nodiscard]] std::string incarnation_text(const Incarnation& incarnation);

[[nodiscard]] std::string holders_json();
[[nodiscard]] std::string holders_json(const LendingProcess& process);  // asks it
[[nodiscard]] std::string processes_json();
[[nodiscard]] std::string names_json();
[[nodiscard]] std::string stats_json();
[[nodiscard]] std::string options_json();
// Of the process's device; starts it.
[[nodiscard]] std::string devices_json();
// What lending needs of the host, each tried; of `device` too where it is not negative, which starts
// it.
[[nodiscard]] std::string probes_json(int device);

}  // namespace limbo
