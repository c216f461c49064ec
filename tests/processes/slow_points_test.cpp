// A process that stops at a transition of the protocol, and one that is slow there, hold nobody up
// for longer than that: the run goes on as if nothing had been, and nothing is lost.
//
// Two tests per fail point. Nobody dies here of what happens there, so that every step of the
// scenario must come out as in an undisturbed run.
#include <signal.h>
#include <sys/wait.h>

#include <atomic>
#include <thread>

#include "tests/processes/every_point.h"

namespace limbo::testing {
namespace {

using std::chrono::milliseconds;

// Far less than the shortest deadline of the protocol, a second.
constexpr milliseconds kStopped{50};
constexpr milliseconds kDelay{10};
// Where nobody can be asked any more whether the point was passed: its end takes so long.
constexpr milliseconds kDelayOfExit{300};

// Lets a child that has stopped itself go on after a while.
class Waker {
 public:
  explicit Waker(pid_t child) : child_(child), thread_([this] { run(); }) {}
  ~Waker() {
    ending_ = true;
    thread_.join();
  }
  Waker(const Waker&) = delete;
  Waker& operator=(const Waker&) = delete;

  [[nodiscard]] int stops() const { return stops_.load(); }

 private:
  void run() {
    while (!ending_) {
      siginfo_t info{};
      const auto child = static_cast<id_t>(child_);
      if (::waitid(P_PID, child, &info, WSTOPPED | WNOHANG) == 0 && info.si_pid == child_) {
        std::this_thread::sleep_for(
            kStopped);  // what it does not do meanwhile, others may wait for
        ++stops_;
        ::kill(child_, SIGCONT);
      } else {
        std::this_thread::sleep_for(milliseconds(1));
      }
    }
  }

  const pid_t child_;
  std::atomic<bool> ending_{false};
  std::atomic<int> stops_{0};
  std::thread thread_;
};

class SlowPointsTest : public EveryPointTest {
 protected:
  SlowPointsTest() : EveryPointTest(Fate::kGoesOn) {}

  static bool passed_by_every_timeline() { return point() == "orphan.after_mark"; }

  void expect_all_back() {
    if (!is_of_exit() && !is_of_orphans()) {
      give_back_lent();
      give_back_opened();
      EXPECT_TRUE(reader_.becomes("releases_pending", 0));
      EXPECT_TRUE(sender_.becomes("limbo", 0));
      if (is_of_lost_context()) reader_.process().kill();
    } else {
      EXPECT_TRUE(dead(sender_));
      give_back_opened();
      EXPECT_TRUE(reader_.becomes("releases_pending", 0));
      EXPECT_TRUE(reader_.becomes("pieces_mapped", 0));
    }
    Peer next;
    if (dead(sender_)) return expect_works(next, reader_);
    expect_works(sender_, dead(reader_) ? next : reader_);
  }
};

TEST_P(SlowPointsTest, AProcessThatStopsThereGoesOn) {
  LIMBO_NEEDS_SIMULATED_DEVICE();  // what a stopped host does is the same on every device
  const Waker waker(passer().process().pid());
  arm("stop");
  play();
  // A thread that is nobody's to wait for may pass it a moment later.
  ASSERT_TRUE(eventually([&] { return waker.stops() == 1; })) << point() << " was not passed";
  if (is_of_exit()) {
    EXPECT_TRUE(sender_.process().wait().success());
  }
  expect_all_back();
}

TEST_P(SlowPointsTest, AProcessThatIsSlowThereLosesNothing) {
  LIMBO_NEEDS_SIMULATED_DEVICE();  // what a slow host does is the same on every device
  const milliseconds delay = is_of_exit() ? kDelayOfExit : kDelay;
  // Thousands of timelines pass one of them, one after the other: there, the first alone.
  arm("delay:" + std::to_string(delay.count()) + (passed_by_every_timeline() ? "@1" : ""));
  play();
  if (is_of_exit()) {
    EXPECT_TRUE(sender_.process().wait().success());
    ASSERT_GE(exit_took_, delay) << point() << " was not passed";
  } else {
    ASSERT_TRUE(eventually([&] { return passer().passed(std::string(point())) != 0; }))
        << point() << " was not passed";
  }
  expect_all_back();
}

INSTANTIATE_TEST_SUITE_P(AllPoints, SlowPointsTest,
                         ::testing::Range(std::size_t{0}, kFailPointCount), name_of_point);

}  // namespace
}  // namespace limbo::testing
