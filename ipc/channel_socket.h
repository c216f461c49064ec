// Making and removing the sockets of a runtime directory.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "ipc/layout.h"
#include "ipc/owned_fd.h"
#include "ipc/runtime_directory.h"

namespace limbo {

// A listening socket named `name`. It is bound and listens under another name first, so that a
// socket under its final name is refused only when its process is dead. Throws kNoChannel.
[[nodiscard]] OwnedFd listen_in(const RuntimeDirectory& directory, const std::string& name);

// Removes the sockets of producers that are provably dead: nobody listens, or whoever listened has
// ended (a fork child may hold the listener still).
void remove_dead_sockets(const RuntimeDirectory& directory) noexcept;

// Who listens at the socket `name`; 0: somebody, and it cannot be told who; nothing: provably
// nobody. What is in doubt is alive.
[[nodiscard]] std::optional<pid_t> listener_pid(const RuntimeDirectory& directory,
                                                const std::string& name);

// Whose socket is named `name`; nothing where it is no producer's (channel_socket_name).
[[nodiscard]] std::optional<Incarnation> producer_of_socket(std::string_view name);

// The names of the producers' sockets in it, living and dead.
[[nodiscard]] std::vector<std::string> producer_sockets(const RuntimeDirectory& directory);

}  // namespace limbo
