// The capture gate, alone: who waits for whom, and how long.
#include "allocator/capture_gate.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <future>
#include <thread>
#include <vector>

#include "tests/unit/sim_support.h"

namespace limbo::testing {
namespace {

using Clock = std::chrono::steady_clock;

class CaptureGate : public ::testing::Test {
 protected:
  void TearDown() override {
    sim_->destroy_stream(stream_);
    EXPECT_EQ(capture_gate::state.load(), 0U);
  }
  bool may_ask() { return static_cast<bool>(StreamQuestion(*sim_)); }
  bool may_ask_patiently() {
    return static_cast<bool>(StreamQuestion(*sim_, StreamQuestion::Patient{}));
  }

  Sandbox sandbox_;
  std::unique_ptr<SimDevice> sim_ = make_sim();
  StreamRef stream_{0, sim_->create_stream(0)};
};

TEST_F(CaptureGate, AnybodyMayAskWhileOthersDo) {
  const StreamQuestion mine(*sim_);
  EXPECT_TRUE(mine);
  bool theirs = false;
  std::thread([&] { theirs = may_ask(); }).join();
  EXPECT_TRUE(theirs);
}

TEST_F(CaptureGate, NobodyAsksWhileACaptureIsBegun) {
  {
    const BeginningCapture beginning(stream_);
    EXPECT_FALSE(may_ask());
    const BeginningCapture another(stream_);
    EXPECT_FALSE(may_ask());
  }
  EXPECT_TRUE(may_ask());
}

TEST_F(CaptureGate, ABeginningThatFailsEnds) {
  try {
    const BeginningCapture beginning(stream_);
    sim_->begin_capture({0, nullptr}, SimCaptureMode::kRelaxed);  // the default stream
    FAIL();
  } catch (const Error&) {
    EXPECT_TRUE(may_ask());
  }
}

TEST_F(CaptureGate, ABeginningWaitsForThoseWhoAsk) {
  std::atomic<bool> asking{false};
  std::atomic<bool> begins{false};
  std::atomic<bool> asked{false};
  std::thread asker([&] {
    const StreamQuestion question(*sim_);
    asking = true;
    while (!begins) std::this_thread::yield();
    while (capture_gate::state.load() < capture_gate::kOneBeginning) std::this_thread::yield();
    asked = true;
  });
  while (!asking) std::this_thread::yield();
  begins = true;
  const BeginningCapture beginning(stream_);
  EXPECT_TRUE(asked);
  asker.join();
}

// Whoever asks may be enqueueing on a full stream behind a kernel that waits for whoever begins.
TEST_F(CaptureGate, ABeginningDoesNotWaitForEver) {
  const StreamQuestion question(*sim_);
  const Clock::time_point before = Clock::now();
  std::thread([&] { const BeginningCapture beginning(stream_); }).join();
  EXPECT_GE(Clock::now() - before, capture_gate::kWaitForQuestions);
}

TEST_F(CaptureGate, WhoNeedsAnAnswerWaitsUntilTheCaptureHasBegun) {
  const BeginningCapture beginning(stream_);
  EXPECT_FALSE(may_ask_patiently());  // and goes on
  sim_->begin_capture(stream_, SimCaptureMode::kRelaxed);
  EXPECT_TRUE(may_ask_patiently());  // though the guard lives still
  EXPECT_NO_THROW((void)sim_->end_capture(stream_));
}

TEST_F(CaptureGate, WhoeverSeesThatItHasBegunSaysSo) {
  const StreamRef other{0, sim_->create_stream(0)};
  const std::uint64_t announcement = capture_gate::announce(stream_);
  capture_gate::begun(other);
  EXPECT_FALSE(may_ask());
  capture_gate::begun(stream_);
  EXPECT_TRUE(may_ask());
  capture_gate::withdraw(announcement);
  EXPECT_TRUE(may_ask());
  sim_->destroy_stream(other);
}

TEST_F(CaptureGate, AForgottenAnnouncementEnds) {
  const Clock::time_point before = Clock::now();
  const std::uint64_t announcement = capture_gate::announce(stream_);
  EXPECT_TRUE(eventually([&] { return may_ask(); }));
  EXPECT_GE(Clock::now() - before, capture_gate::kLongestAnnouncement);
  capture_gate::withdraw(announcement);
}

// Announces the stream, and somebody is in the driver with a question about it, for long.
class SlowQuestion {
 public:
  SlowQuestion(SimDevice& sim, StreamRef stream) : sim_(sim) {
    sim_.reset_calls();
    sim_.faults().add("is_capturing:1=hang");
    asker_ = std::thread([this, stream] {
      // Again, where the thread stood still for as long as an announcement lasts.
      while (sim_.calls(CallKind::kIsCapturing) == 0) {
        announcement_ = capture_gate::announce(stream);
        (void)static_cast<bool>(StreamQuestion(sim_));
      }
    });
    EXPECT_TRUE(sim_.faults().wait_for_hanging(1, kPatience));
  }
  ~SlowQuestion() { end(); }
  SlowQuestion(const SlowQuestion&) = delete;
  SlowQuestion& operator=(const SlowQuestion&) = delete;

  [[nodiscard]] std::uint64_t announcement() const { return announcement_; }
  void end() {
    if (!asker_.joinable()) return;
    sim_.faults().release_hangs();
    asker_.join();
    sim_.faults().clear();
  }

 private:
  SimDevice& sim_;
  std::atomic<std::uint64_t> announcement_{0};
  std::thread asker_;
};

TEST_F(CaptureGate, ASlowQuestionHoldsUpNoForkAndNoOtherQuestion) {
  SlowQuestion slow(*sim_, stream_);
  EXPECT_FALSE(may_ask());
  auto forked = std::async(std::launch::async, [] {
    const pid_t child = ::fork();
    if (child == 0) ::_exit(0);
    int status = -1;
    return ::waitpid(child, &status, 0) == child && WIFEXITED(status);
  });
  EXPECT_EQ(forked.wait_for(kPatience / 2), std::future_status::ready);
  slow.end();
  EXPECT_TRUE(forked.get());
  capture_gate::withdraw(slow.announcement());
}

// It is destroyed behind the withdrawal, and the driver may not be asked about it then.
TEST_F(CaptureGate, AStreamIsAskedAboutOnlyWhileItIsAnnounced) {
  SlowQuestion slow(*sim_, stream_);
  const std::uint64_t another = capture_gate::announce(stream_);
  capture_gate::begun(stream_);
  EXPECT_EQ(capture_gate::state.load(), 0U);
  EXPECT_TRUE(may_ask());
  std::atomic<int> withdrawn{0};
  std::vector<std::thread> threads;
  for (const std::uint64_t each : {slow.announcement(), another}) {
    threads.emplace_back([&withdrawn, each] {
      capture_gate::withdraw(each);
      ++withdrawn;
    });
  }
  EXPECT_FALSE(eventually([&] { return withdrawn != 0; }, std::chrono::milliseconds(50)));
  slow.end();
  for (std::thread& thread : threads) thread.join();
}

TEST_F(CaptureGate, WhoSeesTheEndWaitsForThoseWhoAskToo) {
  SlowQuestion slow(*sim_, stream_);
  capture_gate::begun(stream_);  // as its allocations say; nothing is announced any more
  std::atomic<bool> ended{false};
  std::thread ends([&] {
    capture_gate::ended(stream_);
    ended = true;
  });
  EXPECT_FALSE(eventually([&] { return ended.load(); }, std::chrono::milliseconds(50)));
  slow.end();
  ends.join();
}

// For a driver that does not answer is not waited for ever.
TEST_F(CaptureGate, AWithdrawalDoesNotWaitForEver) {
  SlowQuestion slow(*sim_, stream_);
  const Clock::time_point before = Clock::now();
  auto withdrawn =
      std::async(std::launch::async, [&] { capture_gate::withdraw(slow.announcement()); });
  EXPECT_EQ(withdrawn.wait_for(kPatience / 2), std::future_status::ready);
  EXPECT_GE(Clock::now() - before, capture_gate::kWaitForAskers);
  slow.end();
}

// Whoever announces it does not know how long it lives.
TEST_F(CaptureGate, AStreamOfUnknownLifeIsNotAskedAbout) {
  static_cast<void>(capture_gate::announce(stream_, capture_gate::StreamLives::kNobodyKnows));
  sim_->reset_calls();
  EXPECT_FALSE(may_ask());
  EXPECT_FALSE(may_ask_patiently());
  EXPECT_EQ(sim_->calls(CallKind::kIsCapturing), 0U);
  capture_gate::begun(stream_);
  EXPECT_TRUE(may_ask());
  static_cast<void>(capture_gate::announce(stream_, capture_gate::StreamLives::kNobodyKnows));
  const std::uint64_t another = capture_gate::announce(stream_);  // by who does
  EXPECT_FALSE(may_ask());
  EXPECT_EQ(sim_->calls(CallKind::kIsCapturing), 1U);
  capture_gate::withdraw(another);
  EXPECT_TRUE(may_ask());
  static_cast<void>(capture_gate::announce(stream_, capture_gate::StreamLives::kNobodyKnows));
  EXPECT_TRUE(eventually([&] { return may_ask(); }));  // and it ends by itself
}

TEST_F(CaptureGate, ItIsFreeInAForkChild) {
  const StreamQuestion question(*sim_);
  std::atomic<bool> announced{false};
  std::thread beginner([&] {
    const std::uint64_t announcement = capture_gate::announce(stream_);
    announced = true;
    capture_gate::withdraw(announcement);
  });
  while (capture_gate::state.load() < capture_gate::kOneBeginning) std::this_thread::yield();
  const pid_t child = ::fork();
  if (child == 0) {
    const bool free = capture_gate::state.load() == 0;
    const Clock::time_point before = Clock::now();
    { const BeginningCapture beginning(stream_); }
    const bool at_once = Clock::now() - before < capture_gate::kWaitForQuestions;
    ::_exit(free && at_once ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
  beginner.join();
}

// Askers and beginners without end: each capture ends well, and nobody is left in the count.
TEST_F(CaptureGate, ManyThreadsAskWhileCapturesBegin) {
  constexpr int kCaptures = 300;
  constexpr int kAskers = 3;
  std::atomic<bool> over{false};
  std::vector<std::thread> askers;
  for (int index = 0; index < kAskers; ++index) {
    askers.emplace_back([&] {
      while (!over) {
        const StreamQuestion question(*sim_);
        if (sim_->is_capturing(stream_) || !question) continue;
        (void)sim_->stream_id(stream_);
      }
    });
  }
  for (int index = 0; index < kCaptures; ++index) {
    {
      const BeginningCapture beginning(stream_);
      sim_->begin_capture(stream_, SimCaptureMode::kRelaxed);
    }
    EXPECT_NO_THROW((void)sim_->end_capture(stream_));
  }
  over = true;
  for (std::thread& asker : askers) asker.join();
}

}  // namespace
}  // namespace limbo::testing
