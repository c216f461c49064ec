// Asking other processes of this user what questions.h lists. Each call is a connection of its own;
// it waits for answers at most 1 s. Errors of all: kProducerExited, kNoChannel, and what the other
// process refuses with.
#pragma once

#include <string>
#include <vector>

#include "ipc/sharing.h"

namespace limbo {

[[nodiscard]] Bytes ask_for(const LendingProcess& owner, const std::string& name);
[[nodiscard]] std::vector<std::string> ask_what_is_published(const LendingProcess& process);
[[nodiscard]] std::vector<Holder> ask_who_holds(const LendingProcess& process);
Reaped ask_to_reap(const LendingProcess& process, bool force);

// Every living process that lends, in the order of the search for runtime directories.
[[nodiscard]] std::vector<LendingProcess> list_processes();

}  // namespace limbo
