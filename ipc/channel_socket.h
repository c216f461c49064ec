// Making and removing the sockets of a runtime directory.
#pragma once

#include <string>

#include "ipc/owned_fd.h"
#include "ipc/runtime_directory.h"

namespace limbo {

// A listening socket named `name`. It is bound and listens under another name first, so that a
// socket under its final name is refused only when its process is dead. Throws kNoChannel.
[[nodiscard]] OwnedFd listen_in(const RuntimeDirectory& directory, const std::string& name);

// Removes the sockets of producers that are provably dead: nobody listens, or whoever listened has
// ended (a fork child may hold the listener still).
void remove_dead_sockets(const RuntimeDirectory& directory) noexcept;

}  // namespace limbo
