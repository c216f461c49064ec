// Life lines and forks. Fork children here do system calls only and end by _exit.
#include "ipc/life_line.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <filesystem>
#include <string>

#include "allocator/error.h"
#include "ipc/driver_files.h"
#include "ipc/fork_guard.h"
#include "ipc/lease_watch.h"
#include "ipc/owned_fd.h"
#include "ipc/packet.h"
#include "tests/support/child_process.h"
#include "tests/support/sandbox.h"

namespace limbo {
namespace {

// Runs `body` in a fork child and returns its exit status.
template <typename Body>
int in_fork_child(Body&& body) {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(body());
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

TEST(LifeLine, IsMadeAtLoadUnderALowNumber) {
  const int fd = life_line::near_end();
  EXPECT_GE(fd, 3);
  EXPECT_LT(fd, 16);
  EXPECT_NE(::fcntl(fd, F_GETFD) & FD_CLOEXEC, 0);
  EXPECT_TRUE(is_life_line(life_line::far_end()));
  EXPECT_FALSE(is_life_line_closed(life_line::far_end()));
}

TEST(LifeLine, OtherDescriptorsAreNone) {
  EXPECT_FALSE(is_life_line(STDERR_FILENO));
  int pair[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET, 0, pair), 0);
  EXPECT_FALSE(is_life_line(pair[0]));
  ::close(pair[0]);
  ::close(pair[1]);
  EXPECT_FALSE(is_life_line(-1));
}

TEST(DriverFiles, AreToldByTheirName) {
  const int before = own_driver_files().lowest;
  const OwnedFd other(::memfd_create("something", MFD_CLOEXEC));
  EXPECT_EQ(own_driver_files().lowest, before);
  const OwnedFd driver(::memfd_create("limbo-sim-queues", MFD_CLOEXEC));
  EXPECT_TRUE(own_driver_files().any());
  EXPECT_FALSE(descendant_has_driver_files());
  // The life line was made before: not late for that.
  EXPECT_EQ(life_line::flags() & life_line::kLate, 0U);
}

TEST(DriverFiles, BelowANumberAreFound) {
  const OwnedFd driver(::memfd_create("limbo-sim-queues", MFD_CLOEXEC));
  EXPECT_FALSE(own_driver_file_below(driver.get()));
  EXPECT_TRUE(own_driver_file_below(driver.get() + 1));
}

TEST(DriverFiles, OfAChildAreSeen) {
  int hold[2];
  ASSERT_EQ(::pipe(hold), 0);
  const OwnedFd driver(::memfd_create("limbo-sim-queues", MFD_CLOEXEC));
  const pid_t child = ::fork();
  if (child == 0) {
    char byte = 0;
    (void)!::read(hold[0], &byte, 1);
    ::_exit(0);
  }
  EXPECT_TRUE(descendant_has_driver_files());
  (void)!::write(hold[1], "x", 1);
  ::waitpid(child, nullptr, 0);
  ::close(hold[0]);
  ::close(hold[1]);
  EXPECT_FALSE(descendant_has_driver_files());
}

// What was used before counts, so each of these runs in a fresh process.

LIMBO_CHILD_ROLE(fork_before_use) {
  const int inherited = life_line::near_end();
  struct stat ours {};
  if (::fstat(inherited, &ours) != 0) return 10;
  return in_fork_child([&] {
    if (fork_guard::is_forked_child()) return 1;
    struct stat theirs {};
    const int own = life_line::near_end();
    if (own < 0 || ::fstat(own, &theirs) != 0) return 2;
    if (theirs.st_ino == ours.st_ino) return 3;  // still its parent's
    struct stat there {};
    if (::fstat(inherited, &there) == 0 && there.st_ino == ours.st_ino) return 4;
    return 0;
  });
}

LIMBO_CHILD_ROLE(fork_with_driver_files) {
  const OwnedFd driver(::memfd_create("limbo-sim-queues", MFD_CLOEXEC));
  const int inherited = life_line::near_end();
  struct stat ours {};
  if (::fstat(inherited, &ours) != 0) return 10;
  return in_fork_child([&] {
    struct stat there {};
    if (::fstat(inherited, &there) != 0 || there.st_ino != ours.st_ino) return 1;
    if ((life_line::flags() & life_line::kLate) == 0) return 2;
    return life_line::near_end() == inherited ? 3 : 0;
  });
}

LIMBO_CHILD_ROLE(lower_driver_file) {
  const OwnedFd driver(::memfd_create("limbo-sim-queues", MFD_CLOEXEC));
  if ((life_line::flags() & life_line::kLate) != 0) return 1;
  if (::dup2(driver.get(), 0) != 0) return 2;  // a number that the program gave up
  return (life_line::flags() & life_line::kLate) != 0 ? 0 : 3;
}

ino_t inode_of(int fd) {
  struct stat facts {};
  return ::fstat(fd, &facts) == 0 ? facts.st_ino : 0;
}

// By a program that closes whatever it does not know. Those who watch the line keep what they have.
LIMBO_CHILD_ROLE(far_end_closed) {
  const OwnedFd driver(::memfd_create("limbo-sim-queues", MFD_CLOEXEC));
  const OwnedFd watched(::fcntl(life_line::far_end(), F_DUPFD_CLOEXEC, 3));
  ::close(life_line::far_end());
  const int far = life_line::far_end();
  if (is_life_line_closed(watched.get())) return 1;  // while this process lives
  if (inode_of(far) != inode_of(watched.get()) || !is_life_line(far)) return 2;
  if ((::fcntl(far, F_GETFD) & FD_CLOEXEC) == 0 || far < life_line::near_end()) return 3;
  return (life_line::flags() & life_line::kLate) == 0 ? 0 : 4;
}

// Nothing tells any more when this process's work ends, but the ends of its files.
LIMBO_CHILD_ROLE(held_end_closed) {
  const OwnedFd driver(::memfd_create("limbo-sim-queues", MFD_CLOEXEC));
  const OwnedFd watched(::fcntl(life_line::far_end(), F_DUPFD_CLOEXEC, 3));
  ::close(life_line::near_end());
  if (!is_life_line_closed(watched.get())) return 1;
  if ((life_line::flags() & life_line::kLate) == 0) return 2;
  if ((life_line::flags() & life_line::kLateWithChildren) != 0) return 3;
  int hold[2];
  if (::pipe(hold) != 0) return 4;
  const pid_t helper = ::fork();
  if (helper == 0) {
    char byte = 0;
    (void)!::read(hold[0], &byte, 1);
    ::_exit(0);
  }
  const bool told = (life_line::flags() & life_line::kLateWithChildren) != 0;
  (void)!::write(hold[1], "x", 1);
  ::waitpid(helper, nullptr, 0);
  if (!told) return 5;
  if (is_life_line_closed(life_line::far_end())) return 6;  // made anew
  return (life_line::flags() & life_line::kLate) != 0 ? 0 : 7;
}

LIMBO_CHILD_ROLE(fork_after_use) {
  fork_guard::begin_use();
  const OwnedFd listener(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  fork_guard::set_listener(listener.get());
  const int met = in_fork_child([&] {
    if (!fork_guard::is_forked_child()) return 1;
    if (::fcntl(listener.get(), F_GETFD) >= 0) return 2;
    if (life_line::near_end() < 0) return 3;  // kept, as the driver's files are
    try {
      fork_guard::begin_use();
    } catch (const Error& failure) {
      return failure.code() == ErrorCode::kForkedChild ? 0 : 4;
    }
    return 5;
  });
  fork_guard::begin_use();  // the parent goes on
  return met;
}

LIMBO_CHILD_ROLE(own_word_in_forks) {
  int something = 0;
  std::atomic<void*>& word = fork_guard::own_word();
  if (word.load() != nullptr) return 10;
  word.store(&something);
  const auto is_null = [&] { return word.load() == nullptr ? 0 : 1; };
  if (in_fork_child(is_null) != 0) return 11;
  const auto forked = static_cast<pid_t>(::syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0));  // no handlers
  if (forked == 0) ::_exit(is_null());
  int status = 0;
  if (::waitpid(forked, &status, 0) != forked || status != 0) return 12;
  return word.load() == &something ? 0 : 13;
}

// The library once more, by another path and name, as a program might load it unaware.
LIMBO_CHILD_ROLE(second_copy) {
  Dl_info own{};
  if (::dladdr(reinterpret_cast<void*>(&life_line::near_end), &own) == 0) return 1;
  const std::string copy = child.argument(0);
  std::filesystem::copy_file(own.dli_fname, copy);
  void* handle = ::dlopen(copy.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) return 2;
  using Begin = void (*)();
  const auto begin = reinterpret_cast<Begin>(::dlsym(handle, "_ZN5limbo10fork_guard9begin_useEv"));
  if (begin == nullptr || begin == &fork_guard::begin_use) return 3;
  try {
    begin();
    return 4;
  } catch (const Error& failure) {
    if (failure.code() != ErrorCode::kAlreadyInUse) return 5;
    const std::string text = failure.what();
    if (text.find(copy) == std::string::npos || text.find(own.dli_fname) == std::string::npos) {
      return 6;
    }
  }
  fork_guard::begin_use();  // the first one works on
  return 0;
}

TEST(OneCopy, ASecondOneIsRefusedAtItsFirstUse) {
#ifdef __SANITIZE_ADDRESS__
  GTEST_SKIP() << "the address sanitizer itself refuses two copies of a library";
#endif
  const testing::Sandbox sandbox;
  const std::string copy = (sandbox.path() / "another_name.so").string();
  EXPECT_EQ(testing::ChildProcess("second_copy", {copy}).wait().code, 0);
}

TEST(ForkGuard, AChildForkedBeforeTheFirstUseIsAProcessOfItsOwn) {
  testing::ChildProcess("fork_before_use").finish();
}

TEST(ForkGuard, TheOwnWordIsNullInEveryForkChild) {
  testing::ChildProcess("own_word_in_forks").finish();
}

TEST(ForkGuard, AChildThatHoldsTheDriversFilesKeepsTheLineAndIsLate) {
  testing::ChildProcess("fork_with_driver_files").finish();
}

TEST(LifeLine, OutlivesAProgramThatClosesTheFarEnd) {
  EXPECT_EQ(testing::ChildProcess("far_end_closed").wait().code, 0);
}

TEST(LifeLine, ThatIsClosedByTheProgramProvesLittle) {
  EXPECT_EQ(testing::ChildProcess("held_end_closed").wait().code, 0);
}

TEST(LifeLine, IsLateWhereTheDriverHasALowerNumber) {
  testing::ChildProcess("lower_driver_file").finish();
}

TEST(ForkGuard, AChildForkedLaterMayDoNothingAndClosesTheListener) {
  testing::ChildProcess("fork_after_use").finish();
}

}  // namespace
}  // namespace limbo
