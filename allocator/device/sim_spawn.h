// Starting the companion program.
#pragma once

#include <string>

#include "allocator/device/sim_link.h"

namespace limbo::sim {

// Starts the companion with `socket` as its descriptor 3, in a session of its own and as nobody's
// child. Throws kDeviceError.
void spawn_companion(int socket, const MachineChoice& choice);

}  // namespace limbo::sim
