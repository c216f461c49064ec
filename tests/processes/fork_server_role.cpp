// A process that loads the library, never uses it, and forks children that do.
#include <sys/wait.h>
#include <unistd.h>

#include "ipc/sharing.h"
#include "tests/support/child_process.h"

namespace limbo::testing {
namespace {

LIMBO_CHILD_ROLE(fork_server) {
  const pid_t worker = ::fork();
  if (worker == 0) {
    child.send(std::to_string(::getpid()));
    const auto got = process_sharing().receive(child.receive_bytes(), ReceiveOptions{});
    child.send(got.block->size_bytes() > 0 ? "received" : "empty");
    while (true) ::pause();
  }
  ::waitpid(worker, nullptr, 0);
  ::pause();  // killed by the test
  return 0;
}

}  // namespace
}  // namespace limbo::testing
