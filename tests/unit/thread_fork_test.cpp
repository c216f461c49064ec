// A fork in a thread that has caches, while another thread holds a lock of the library.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <mutex>
#include <thread>

#include "allocator/thread_registry.h"
#include "tests/support/child_process.h"
#include "tests/support/eventually.h"
#include "tests/unit/allocator_support.h"

namespace limbo::testing {
namespace {

// The end of a thread gives its caches back under a lock. In a fork child that lock may be held by a
// thread that the child does not have, and the caches are its parent's.
LIMBO_CHILD_ROLE(forks_in_a_thread) {
  const auto sim = make_sim();
  Allocator allocator(*sim);
  std::atomic<bool> has_caches{false};
  std::atomic<bool> locked{false};
  std::atomic<pid_t> forked{-1};
  std::thread worker([&] {
    allocator.free(allocator.allocate(4096, {}));
    has_caches = true;
    while (!locked) std::this_thread::yield();
    const pid_t pid = ::fork();
    if (pid == 0) return;  // the child's only thread ends, and with it the child
    forked = pid;
  });
  while (!has_caches) std::this_thread::yield();
  {
    const std::lock_guard lock(thread_registry::mutex());
    locked = true;
    while (forked < 0) std::this_thread::yield();
  }
  worker.join();
  int status = 0;
  const bool ended = eventually([&] { return ::waitpid(forked, &status, WNOHANG) == forked; },
                                std::chrono::seconds(10));
  if (!ended) {
    ::kill(forked, SIGKILL);
    ::waitpid(forked, nullptr, 0);
    return 1;
  }
  return WIFEXITED(status) && WEXITSTATUS(status) == 0 ? 0 : 2;
}

TEST(ThreadFork, AChildOfAThreadEndsAlthoughTheRegistryWasLocked) {
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
  GTEST_SKIP() << "sanitizers know no forks of threads";
#endif
  ChildProcess child("forks_in_a_thread");
  EXPECT_EQ(child.wait().code, 0);
  EXPECT_EQ(child.output(), "");
}

}  // namespace
}  // namespace limbo::testing
