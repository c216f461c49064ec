#include "ipc/lease_watch.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <string>

#include "ipc/life_line.h"
#include "tests/support/eventually.h"
#include "tests/support/sandbox.h"

namespace limbo {
namespace {

using Clock = DeathSigns::Clock;

TEST(DeathSigns, ALivingProcessIsNeverQuiet) {
  const Clock::time_point now = Clock::now();
  DeathSigns signs;
  EXPECT_FALSE(signs.gone());
  signs.connection_closed = true;
  EXPECT_FALSE(signs.gone());
  EXPECT_FALSE(signs.quiet_at(now));
  signs.connection_closed = false;
  signs.life_line_closed = true;  // closed by the program by mistake: it still talks to us
  EXPECT_FALSE(signs.gone());
  EXPECT_FALSE(signs.quiet_at(now));
}

TEST(DeathSigns, EndedAndLifeLineClosedIsQuietAtOnce) {
  const Clock::time_point now = Clock::now();
  DeathSigns signs;
  signs.process_ended = true;
  EXPECT_TRUE(signs.gone());
  EXPECT_FALSE(signs.quiet_at(now));
  EXPECT_NE(signs.why().find("fork child"), std::string::npos);
  signs.life_line_closed = true;
  EXPECT_EQ(signs.quiet_at(now), now);
}

TEST(DeathSigns, GraceRunsFromTheLastSignAndIsNotExtended) {
  const Clock::time_point now = Clock::now();
  for (const std::uint32_t flags : {life_line::kLate, life_line::kPerhapsMps}) {
    DeathSigns signs;
    signs.life_line_flags = flags;
    signs.life_line_closed = true;
    EXPECT_FALSE(signs.quiet_at(now));
    signs.process_ended = true;
    EXPECT_EQ(signs.quiet_at(now), now + kQuietGrace);
    EXPECT_EQ(signs.quiet_at(now + kQuietGrace), now + kQuietGrace);
  }
}

TEST(DeathSigns, ExecIsToldByLifeLineAndConnectionAndGetsGrace) {
  const Clock::time_point now = Clock::now();
  DeathSigns signs;
  signs.life_line_closed = true;
  signs.connection_closed = true;
  EXPECT_TRUE(signs.gone());
  EXPECT_EQ(signs.quiet_at(now), now + kQuietGrace);
  EXPECT_NE(signs.why().find("exec"), std::string::npos);
}

TEST(DeathSigns, ChildrenFromBeforeTheLifeLineKeepItForEver) {
  DeathSigns signs;
  signs.life_line_flags = life_line::kLate | life_line::kLateWithChildren;
  signs.process_ended = signs.life_line_closed = signs.connection_closed = true;
  EXPECT_TRUE(signs.gone());
  EXPECT_FALSE(signs.quiet_at(Clock::now()));
  EXPECT_FALSE(signs.why().empty());
}

// ---- the line itself ----------------------------------------------------------------------------

// Another process's line, watched by this one, and somebody else who was handed its far end too.
class WatchedLine : public ::testing::Test {
 protected:
  WatchedLine() {
    const life_line::Ends ends = life_line::make_ends();
    held_.reset(ends.held);
    hostile_.reset(::fcntl(ends.far, F_DUPFD_CLOEXEC, 0));
    run_and_wait(reaper_, [&] {
      watch_ = std::make_unique<PeerWatch>(reaper_, OwnedFd(), OwnedFd(ends.far), 0,
                                           [this] { ++signs_told_; });
    });
  }
  ~WatchedLine() override {
    run_and_wait(reaper_, [&] { watch_.reset(); });
  }

  // As the watch sees it now, and as it was told on its own.
  bool closed() {
    bool closed = false;
    run_and_wait(reaper_, [&] {
      watch_->look_now();
      closed = watch_->signs().life_line_closed;
    });
    return closed;
  }
  OwnedFd opened_anew(int flags) const {
    const std::string path = "/proc/self/fd/" + std::to_string(hostile_.get());
    return OwnedFd(::open(path.c_str(), flags | O_CLOEXEC));
  }

  ServiceThread reaper_{"limbo-test"};
  OwnedFd held_;
  OwnedFd hostile_;
  std::unique_ptr<PeerWatch> watch_;
  std::atomic<int> signs_told_{0};
};

TEST_F(WatchedLine, EndsWithTheLastThatHoldsIt) {
  EXPECT_TRUE(is_life_line(hostile_.get()));
  EXPECT_FALSE(closed());
  OwnedFd inherited(::fcntl(held_.get(), F_DUPFD_CLOEXEC, 0));
  const int before = signs_told_;
  held_.reset();
  EXPECT_FALSE(closed());
  EXPECT_EQ(signs_told_, before + 1);  // told by the look alone
  inherited.reset();
  EXPECT_TRUE(testing::eventually([&] { return signs_told_ == before + 2; }));
  EXPECT_TRUE(closed());
}

// It gets the same open file as the one that watches.
TEST_F(WatchedLine, NobodyWhoHasTheFarEndEndsIt) {
  const int fd = hostile_.get();
  const char bytes[4096] = {};
  for (const int how : {SHUT_RD, SHUT_WR, SHUT_RDWR}) {
    (void)::shutdown(fd, how);
    EXPECT_FALSE(closed()) << how;
  }
  (void)!::write(fd, bytes, sizeof(bytes));
  (void)::send(fd, bytes, sizeof(bytes), MSG_OOB | MSG_NOSIGNAL | MSG_DONTWAIT);
  for (const int flags : {O_RDONLY, O_RDONLY | O_NONBLOCK, O_WRONLY | O_NONBLOCK, O_RDWR}) {
    const OwnedFd again = opened_anew(flags);
    (void)!::write(again.get(), bytes, sizeof(bytes));
    EXPECT_FALSE(closed()) << flags;
  }
  EXPECT_FALSE(closed());
  int yes = 1;
  (void)::ioctl(fd, FIONBIO, &yes);
  char got = 0;
  while (::read(fd, &got, 1) == 1) {
  }
  (void)::fcntl(fd, F_SETFL, O_NONBLOCK | O_APPEND | O_ASYNC);
  (void)::fcntl(fd, F_SETPIPE_SZ, 4096);
  (void)::fchmod(fd, 0);
  yes = 0;
  (void)::ioctl(fd, FIONBIO, &yes);
  EXPECT_FALSE(closed());
  hostile_.reset();
  EXPECT_FALSE(closed());
  held_.reset();
  EXPECT_TRUE(testing::eventually([&] { return closed(); }));
}

// What is written into it wakes nobody, and hides the end from nobody.
TEST_F(WatchedLine, WhatIsWrittenIntoItIsNothing) {
  const int before = signs_told_;
  {
    const OwnedFd writer = opened_anew(O_WRONLY | O_NONBLOCK);
    const char bytes[4096] = {};
    while (::write(writer.get(), bytes, sizeof(bytes)) > 0) {
    }
  }
  EXPECT_FALSE(closed());
  EXPECT_EQ(signs_told_, before + 1);
  held_.reset();
  EXPECT_TRUE(testing::eventually([&] { return signs_told_ == before + 2; }));
  EXPECT_TRUE(closed());
}

TEST(LifeLines, OnlyTheReadEndOfAPipeIsOne) {
  const life_line::Ends ends = life_line::make_ends();
  const OwnedFd held(ends.held);
  const OwnedFd far(ends.far);
  EXPECT_TRUE(is_life_line(far.get()));
  EXPECT_FALSE(is_life_line(held.get()));  // would never hang up
  const std::string path = "/proc/self/fd/" + std::to_string(far.get());
  EXPECT_FALSE(is_life_line(OwnedFd(::open(path.c_str(), O_RDWR | O_CLOEXEC)).get()));
  EXPECT_FALSE(is_life_line(OwnedFd(::open(path.c_str(), O_PATH | O_CLOEXEC)).get()));
  EXPECT_FALSE(is_life_line(-1));
}

// One in the file system that nobody has ever opened for writing does not hang up.
TEST(LifeLines, APipeWithANameIsNone) {
  const testing::Sandbox sandbox;
  const std::string path = (sandbox.path() / "pipe").string();
  ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
  const OwnedFd pipe(::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  ASSERT_TRUE(pipe.valid());
  EXPECT_FALSE(is_life_line_closed(pipe.get()));
  EXPECT_FALSE(is_life_line(pipe.get()));
}

TEST(LifeLines, TheHeldEndHasTheLowestNumberToBeHad) {
  OwnedFd lowest(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  const int number = lowest.get();
  lowest.reset();
  const life_line::Ends ends = life_line::make_ends();
  const OwnedFd held(ends.held);
  const OwnedFd far(ends.far);
  EXPECT_EQ(held.get(), number);
  for (const int fd : {held.get(), far.get()}) EXPECT_NE(::fcntl(fd, F_GETFD) & FD_CLOEXEC, 0);
}

}  // namespace
}  // namespace limbo
