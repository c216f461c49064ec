// Trace 24: two processes publish under one name at the same time.
#include <signal.h>
#include <sys/wait.h>

#include <chrono>
#include <thread>

#include "tests/processes/sharing_support.h"

namespace limbo::testing {
namespace {

// Long enough for an answer that should not come.
constexpr std::chrono::milliseconds kMeanwhile{300};

bool took_the_name(Peer& peer) {
  return error_of([&] { (void)peer.answer(); }) == "none";
}

using NamesUnlocked = SharingTest;

// One has looked and not yet taken it when the other comes.
TEST_F(NamesUnlocked, OneOfTwoThatWantANameGetsIt) {
  sender_.allocate("a", kMiB, 7);
  reader_.allocate("b", kMiB, 8);
  sender_.set_fail_points("names.after_look=stop");
  sender_.send("publish weights a");
  siginfo_t stopped{};
  ASSERT_EQ(::waitid(P_PID, static_cast<id_t>(sender_.process().pid()), &stopped,
                     WSTOPPED | WEXITED | WNOWAIT),
            0);
  reader_.send("publish weights b");
  std::this_thread::sleep_for(kMeanwhile);
  sender_.process().resume();
  const bool first = took_the_name(sender_);
  const bool second = took_the_name(reader_);
  EXPECT_TRUE(first);
  EXPECT_FALSE(second);
  // The name leads to who was told that it has it.
  Peer third;
  third.receive("x", third.acquire("weights"));
  EXPECT_TRUE(third.holds("x", first ? 7 : 8));
  third.drop("x");
  if (first) (void)sender_.unpublish("weights");
  if (second) (void)reader_.unpublish("weights");
}

}  // namespace
}  // namespace limbo::testing
