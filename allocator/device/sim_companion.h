// The companion: the process that plays the GPU for one client.
//
// It is started at the client's first use of the device, works off the client's streams, and lives
// until every copy of the client's socket end is closed: the client's own, and those of its fork
// children. Then all work stops at once, the client's memory references go, and it ends. So a
// killed client's queued work goes on exactly as long as a fork child holds the descriptor.
#pragma once

namespace limbo::sim {

// The body of the program limbo_sim_companion. Arguments: machine path, devices, bytes per device;
// the socket is descriptor 3. Returns the exit status.
int run_companion(int argc, char** argv);

inline constexpr int kCompanionSocket = 3;

}  // namespace limbo::sim
