// What ends when a process does: a dead reader's work, a life line, and the patience of whoever claims
// from a sender that has stopped.
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstddef>
#include <cstring>

#include "ipc/lease_watch.h"
#include "ipc/life_line.h"
#include "ipc/owned_fd.h"
#include "ipc/packet.h"
#include "tests/processes/sharing_support.h"

namespace limbo::testing {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kSoon{5'000};

// ---- a dead reader's kernel writes on while a fork child of it lives -------------------------------

using NoLifeline = SharingTest;

TEST_F(NoLifeline, WhatADeadReaderStillWritesIsNotReused) {
  sender_.allocate("b", kMiB, 1);
  reader_.receive("r", sender_.share("b"));
  sender_.free("b");
  reader_.write_for("r", 99, milliseconds(60'000));
  const pid_t child = reader_.fork_idle_child();
  reader_.process().kill();
  EXPECT_TRUE(eventually([&] {
    const auto numbers = sender_.stats();
    return numbers.at("leases_quarantined") + numbers.at("leases_swept") == 1;
  }));
  sender_.allocate("canary", kMiB, 42);
  sender_.synchronize();
  EXPECT_TRUE(sender_.holds("canary", 42)) << "reused under a kernel that writes";
  EXPECT_EQ(sender_.stat("claims_swept"), 0);
  ::kill(child, SIGKILL);
  sender_.free("canary");
  expect_all_back();
}

// ---- a child that has the driver's files keeps the life line of its parent too ----------------------

// The process that dies: has the driver's files, and a child that has them too. Sends its life line's
// far end and the child's number.
[[noreturn]] void parent_that_ends(int to) {
  const OwnedFd driver(::memfd_create("limbo-sim-queues", MFD_CLOEXEC));
  const pid_t child = ::fork();
  if (child == 0) {
    // What a child does about the line, it does within fork.
    const std::array<std::byte, 1> started{};
    (void)send_packet(to, started);
    ::close(to);
    while (true) ::pause();
  }
  std::array<std::byte, sizeof(pid_t)> number{};
  std::memcpy(number.data(), &child, sizeof(child));
  const int line[] = {life_line::far_end()};
  ::_exit(driver.valid() && send_packet(to, number, line) ? 0 : 1);
}

LIMBO_CHILD_ROLE(watches_a_life_line) {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) return 1;
  const pid_t parent = ::fork();
  if (parent == 0) parent_that_ends(ends[1]);
  Packet packet;
  for (int heard = 0; heard < 2; ++heard) {  // the parent, with the line, and its child
    Packet next;
    if (!eventually([&] { return receive_packet(ends[0], next) == PacketStatus::kPacket; })) {
      return 1;
    }
    if (!next.descriptors.empty()) packet = std::move(next);
  }
  ::waitpid(parent, nullptr, 0);
  pid_t grandchild = 0;
  std::memcpy(&grandchild, packet.bytes.data(), sizeof(grandchild));
  const int line = packet.descriptors.at(0).get();
  child.send(is_life_line_closed(line) ? "closed" : "open");
  ::kill(grandchild, SIGKILL);
  child.send(eventually([&] { return is_life_line_closed(line); }) ? "closed" : "open");
  return 0;
}

TEST(ChildDropsLifeLine, TheLineIsOpenAsLongAsAnybodyHasTheDriversFiles) {
  ChildProcess watcher("watches_a_life_line");
  EXPECT_EQ(watcher.receive(), "open") << "the parent's work may run on, and counts as ended";
  EXPECT_EQ(watcher.receive(), "closed");
  watcher.finish();
}

// ---- a sender that stopped between CLOSING and its verdict ------------------------------------------

using ClosingWithoutPatience = SharingTest;

TEST_F(ClosingWithoutPatience, AClaimGivesUpOnASenderThatHasStopped) {
  sender_.allocate("b", kMiB, 1);
  const std::string message = sender_.share("b");
  reader_.receive("r", message);
  reader_.drop("r");
  EXPECT_TRUE(eventually([&] {
    sender_.collect();
    return sender_.stat("held_claims") == 0;
  }));
  sender_.set_fail_points("close.before_verdict=stop");
  sender_.send("free b");
  sender_.send("collect");
  siginfo_t stopped{};
  ASSERT_EQ(::waitid(P_PID, static_cast<id_t>(sender_.process().pid()), &stopped,
                     WSTOPPED | WEXITED | WNOWAIT),
            0);
  reader_.send("receive again " + message + " -1");
  std::string answer = "none";
  try {
    answer = reader_.process().receive(kSoon);
  } catch (const ChildFailed&) {
    // It looks at the sender's word without end; the sender goes on, so that everything ends.
  }
  EXPECT_EQ(answer.substr(0, 10), "error gone");
  sender_.process().resume();
  EXPECT_EQ(sender_.answer(), "");
  EXPECT_EQ(sender_.answer(), "");
}

}  // namespace
}  // namespace limbo::testing
