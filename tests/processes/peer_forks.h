// What a peer does to its own process: forks, starts programs, loses connections.
#pragma once

#include <sys/types.h>

#include <functional>
#include <string>

namespace limbo::testing {

// A fork child that does nothing until it is killed.
pid_t fork_idle_child();

// Another program, by posix_spawn, that does nothing.
pid_t spawn_idle_program();

// Uses sharing in a fork child (2: in a child of that child), and then drops what its parent holds
// there. The code of the error that it meets, or "none".
[[nodiscard]] std::string use_in_fork_child(int generations, const std::function<void()>& drop_all);

// A file of the simulated driver, under this number: as if the driver had been given one that the
// program had done with.
void open_driver_file(int number);

// The same at the next passing of that fail point.
void open_driver_file_at(const std::string& fail_point, int number);

// Shuts every connection of this process's channels, as if something between the processes had.
void cut_connections();

}  // namespace limbo::testing
