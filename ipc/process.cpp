// The process's own allocator and sharing, and what happens when it ends.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>

#include "allocator/device/driver_start.h"
#include "allocator/options.h"
#include "ipc/exit.h"
#include "ipc/fork_guard.h"
#include "ipc/sharing_service.h"

namespace limbo {
namespace {

const Option kExitDrain({"exit_drain_ms", "ms", 0, 24LL * 60 * 60 * 1000, 5000,
                         "how long a process waits at its exit until the messages that are in "
                         "flight have been opened and what is held has been written; read at the "
                         "exit"});

SharingService& service();

// Registered several times; the last registration runs first, and alone does something. A child that
// was forked later runs its parent's handlers when it exits: nothing there is its own.
void at_exit() {
  static std::atomic<bool> begun{false};
  if (fork_guard::is_forked_child() || begun.exchange(true)) return;
  service().end(std::chrono::milliseconds(kExitDrain.value_or_default()));
}

// Never destroyed: blocks are released and freed during static destruction too.
SharingService& service() {
  static auto* made = [] {
    auto* sharing = new SharingService(&process_device, &process_allocator);
    // It has to run before the driver's own handlers: others wait for what the device has not done yet.
    // The driver may have started before, or does later.
    sharing->when_started([] {
      set_driver_start_callback([] { std::atexit(&at_exit); });
      std::atexit(&at_exit);
    });
    return sharing;
  }();
  return *made;
}

}  // namespace

Allocator& process_allocator() {
  fork_guard::begin_use();
  static auto* made = [] {
    FixedOptions fixed({"thread_cache_bytes", "unmap_wait_ms", "collect_wait_ms"},
                       "This process's allocator is made");
    auto* allocator = new Allocator(process_device());
    fixed.stay();
    return allocator;
  }();
  return *made;
}

Sharing& process_sharing() {
  return service();
}

void drain_before_exit() {
  using std::chrono::milliseconds;
  const milliseconds limit(kExitDrain.value_or_default());
  const auto begin = std::chrono::steady_clock::now();
  service().drain(limit);
  const auto waited =
      std::chrono::duration_cast<milliseconds>(std::chrono::steady_clock::now() - begin);
  set_option(kExitDrain.spec().name, std::max(milliseconds(0), limit - waited).count());
}

}  // namespace limbo
