// The received blocks that live, and forks.
#include "ipc/live_blocks.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "tests/support/child_process.h"
#include "tests/support/eventually.h"

namespace limbo::testing {
namespace {

class CountedBlock : public KeptByGraphs {
 public:
  void keep_until(const std::shared_ptr<const GraphEnd>&) override { ++kept_; }
  [[nodiscard]] int kept() const noexcept { return kept_; }

 private:
  int kept_ = 0;
};

TEST(LiveBlocksTest, ThoseOfTheDeviceAreKept) {
  LiveBlocks all;
  CountedBlock here;
  CountedBlock elsewhere;
  CountedBlock ended;
  Living first(all, &here);
  Living second(all, &elsewhere);
  Living third(all, &ended);
  first.begin(0);
  second.begin(1);
  third.begin(0);
  third.end();
  third.end();
  all.keep_all_until(0, std::make_shared<const GraphEnd>());
  EXPECT_EQ(here.kept(), 1);
  EXPECT_EQ(elsewhere.kept(), 0);
  EXPECT_EQ(ended.kept(), 0);
}

// Is being kept for as long as its process wants: meanwhile the blocks are locked.
class SlowBlock : public KeptByGraphs {
 public:
  void keep_until(const std::shared_ptr<const GraphEnd>&) override {
    locked_ = true;
    while (!forked_) std::this_thread::yield();
  }
  void wait_until_locked() const {
    while (!locked_) std::this_thread::yield();
  }
  void forked() noexcept { forked_ = true; }

 private:
  std::atomic<bool> locked_{false};
  std::atomic<bool> forked_{false};
};

// The lock of the child's copy is had by a thread that the child does not have.
LIMBO_CHILD_ROLE(drops_in_a_fork_child) {
  fork_guard::begin_use();
  LiveBlocks all;
  SlowBlock block;
  auto living = std::make_unique<Living>(all, &block);
  living->begin(0);
  std::thread keeper([&] { all.keep_all_until(0, std::make_shared<const GraphEnd>()); });
  block.wait_until_locked();
  const pid_t forked = ::fork();
  if (forked == 0) {
    living.reset();
    ::_exit(0);
  }
  block.forked();
  keeper.join();
  int status = 0;
  const bool ended = eventually([&] { return ::waitpid(forked, &status, WNOHANG) == forked; },
                                std::chrono::seconds(5));
  if (!ended) {
    ::kill(forked, SIGKILL);
    ::waitpid(forked, nullptr, 0);
    return 1;
  }
  return WIFEXITED(status) && WEXITSTATUS(status) == 0 ? 0 : 2;
}

TEST(LiveBlocksTest, AForkChildDropsABlockAlthoughAllAreLocked) {
  ChildProcess child("drops_in_a_fork_child");
  EXPECT_EQ(child.wait().code, 0);
  EXPECT_EQ(child.output(), "");
}

}  // namespace
}  // namespace limbo::testing
