// The process's own allocator and sharing, and what happens when it ends.
#include <cstdlib>

#include "allocator/options.h"
#include "ipc/fork_guard.h"
#include "ipc/sharing_service.h"

namespace limbo {
namespace {

const Option kExitDrain({"exit_drain_ms", "ms", 0, 24LL * 60 * 60 * 1000, 5000,
                         "how long a process waits at its exit until the messages that are in "
                         "flight have been opened and what is held has been written"});

SharingService& service();

// A child that was forked later runs its parent's handlers when it exits: nothing there is its own.
void at_exit() {
  if (fork_guard::is_forked_child()) return;
  std::int64_t drain_ms = kExitDrain.spec().default_value;
  try {
    drain_ms = kExitDrain.value();
  } catch (const std::exception&) {
    // A value that nobody can read: the default.
  }
  service().end(std::chrono::milliseconds(drain_ms));
}

// Never destroyed: blocks are released and freed during static destruction too.
SharingService& service() {
  static auto* made = [] {
    auto* sharing = new SharingService(&process_device, &process_allocator);
    // Registered after the device has started, so that it runs before the driver's own handlers.
    sharing->when_started([] { std::atexit(&at_exit); });
    return sharing;
  }();
  return *made;
}

}  // namespace

Allocator& process_allocator() {
  fork_guard::begin_use();
  static auto* made = new Allocator(process_device());
  return *made;
}

Sharing& process_sharing() {
  return service();
}

}  // namespace limbo
