// Processes that load the library, fork children before anybody uses it, and use it afterwards.
#include <sys/wait.h>
#include <unistd.h>

#include "ipc/sharing.h"
#include "tests/support/child_process.h"

namespace limbo::testing {
namespace {

// A fork server: never uses the library itself.
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

// Says its pid, receives what the test sends, and stays.
[[noreturn]] void receive_one(ChildContext& child, int tell) {
  child.send(std::to_string(::getpid()));
  const auto got = process_sharing().receive(child.receive_bytes(), ReceiveOptions{});
  child.send(got.block->size_bytes() > 0 ? "received" : "empty");
  if (tell >= 0) (void)!::write(tell, "x", 1);
  while (true) ::pause();
}

// A process, its child and its grandchild, forked before anybody uses the library: the grandchild
// receives first, its parent next, and so on.
LIMBO_CHILD_ROLE(fork_family) {
  int tell = -1;  // who is told when this generation has received
  for (int generation = 0; generation < 3; ++generation) {
    int ends[2];
    if (generation == 2) receive_one(child, tell);
    if (::pipe(ends) != 0) return 1;
    if (::fork() != 0) {
      char byte = 0;
      if (::read(ends[0], &byte, 1) != 1) return 1;
      receive_one(child, tell);
    }
    tell = ends[1];
  }
  return 0;
}

}  // namespace
}  // namespace limbo::testing
