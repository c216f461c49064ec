// What a peer does to its own process: forks, starts programs, loses connections.
#pragma once

#include <sys/types.h>

#include <functional>
#include <string>
#include <vector>

#include "ipc/sharing.h"

namespace limbo::testing {

// A fork child that does nothing until it is killed.
pid_t fork_idle_child();

// Another program, by posix_spawn, that does nothing.
pid_t spawn_idle_program();

// Uses sharing in a fork child (2: in a child of that child), and what its parent holds, and then drops
// that there. The code of the error that all of it meets ("none" for none), or what each meets where
// they differ; empty when the child has died of it.
[[nodiscard]] std::string use_in_fork_child(int generations,
                                            const std::vector<std::function<void()>>& uses,
                                            const std::function<void()>& drop_all);

// Forks so many children, one after another, while threads receive and release `message` over and over.
// Each drops what its parent holds and ends. How many have done so; one that has not is killed.
[[nodiscard]] std::string drop_in_fork_children(int children, const Bytes& message,
                                                const std::function<void()>& drop_all);

// A file of the simulated driver, under this number: as if the driver had been given one that the
// program had done with.
void open_driver_file(int number);

// The same at the next passing of that fail point.
void open_driver_file_at(const std::string& fail_point, int number);

// Shuts every connection of this process's channels, as if something between the processes had.
void cut_connections();

}  // namespace limbo::testing
