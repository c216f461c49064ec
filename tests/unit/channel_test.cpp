#include "ipc/channel.h"

#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#include <cerrno>
#include <cstddef>
#include <filesystem>
#include <random>
#include <thread>

#include "ipc/channel_bounds.h"
#include "ipc/channel_socket.h"
#include "tests/unit/channel_support.h"

namespace limbo {
namespace {

using testing::ChannelTest;
using testing::eventually;

#ifndef SO_PEERPIDFD
#define SO_PEERPIDFD 77
#endif

// From now on getsockopt(..., option) fails with `error` in this thread.
bool refuse_socket_option(unsigned option, unsigned error) {
  sock_filter program[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_getsockopt, 0, 3),
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, args[2])),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, option, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | error),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog filter{sizeof(program) / sizeof(program[0]), program};
  return ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) == 0;
}
TEST_F(ChannelTest, WelcomesAConsumerAndHandsItTheTables) {
  const Handshake hands = shake_hands(address(), random_incarnation());
  EXPECT_EQ(hands.lease_number, 0U);
  EXPECT_EQ(hands.capacities, keeper().capacities_);
  EXPECT_EQ(hands.pid, ::getpid());
  struct stat ours {};
  struct stat theirs {};
  ASSERT_EQ(::fstat(hands.row.get(), &ours), 0);
  ASSERT_EQ(::fstat(keeper().row_.get(), &theirs), 0);
  EXPECT_EQ(ours.st_ino, theirs.st_ino);
  EXPECT_TRUE(keeper().noted("add " + std::to_string(::getpid())));
  // Of the process, whatever it says of itself; each has its own.
  const auto number_of = [](pid_t pid) {
    const OwnedFd pidfd(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
    return identify_process(pidfd.get(), pid).process;
  };
  EXPECT_EQ(keeper().process_, number_of(::getpid()));
  if (number_of(::getpid()) != 0) {
    EXPECT_NE(keeper().process_, number_of(::getppid()));
  }
}

TEST_F(ChannelTest, HandsOnDeclinesAndBells) {
  const Handshake hands = shake_hands(address(), random_incarnation());
  ASSERT_TRUE(send_packet(hands.socket.get(), encode(Decline{7, 8})));
  ASSERT_TRUE(send_packet(hands.socket.get(), encode_row_half_full()));
  ASSERT_TRUE(send_packet(hands.socket.get(), encode_context_lost()));
  EXPECT_TRUE(eventually([&] {
    return keeper().noted("decline 0 7 8") && keeper().noted("half 0") && keeper().noted("lost 0");
  }));
}

TEST_F(ChannelTest, ARefusalArrivesWithItsReason) {
  keeper().refuse_ = true;
  try {
    (void)shake_hands(address(), random_incarnation());
    FAIL();
  } catch (const Error& failure) {
    EXPECT_EQ(failure.code(), ErrorCode::kLedgerFull);
    EXPECT_NE(std::string(failure.what()).find("No lease is left"), std::string::npos);
  }
  keeper().refuse_ = false;
  (void)shake_hands(address(), random_incarnation());
}

TEST_F(ChannelTest, AClosedConnectionAloneIsNotGone) {
  {
    const OwnedFd socket = connect();
    const int line[] = {life_line::far_end()};
    ASSERT_TRUE(send_packet(socket.get(), hello_bytes(), line));
    (void)next(socket.get());
  }
  const Handshake later = shake_hands(address(), random_incarnation());  // read after its end
  EXPECT_EQ(keeper().notes(), 2U);
}

// Somebody who gave up waiting for the welcome was handed nothing, so nothing is kept for it: a
// sender that was stopped for a while would gather leases otherwise.
TEST_F(ChannelTest, WhoWasNotReachedByTheWelcomeHoldsNothing) {
  say_hello_and_go();
  EXPECT_TRUE(eventually([&] { return keeper().noted("quiet 0"); }));
}

TEST_F(ChannelTest, AConnectionAndALifeLineClosedAreGone) {
  const life_line::Ends line = life_line::make_ends();
  OwnedFd near_end(line.held);
  OwnedFd other_end(line.far);
  OwnedFd socket = connect();
  const int sent[] = {other_end.get()};
  ASSERT_TRUE(send_packet(socket.get(), hello_bytes(), sent));
  (void)next(socket.get());
  other_end.reset();
  near_end.reset();
  socket.reset();
  const auto gone = [&] {
    return keeper().noted(
        "gone 0 the process has replaced itself by exec; its GPU work is given 2 s to stop");
  };
  EXPECT_TRUE(eventually(gone));
  EXPECT_FALSE(keeper().noted("quiet 0"));
  EXPECT_TRUE(eventually([&] { return keeper().noted("quiet 0"); }));
}

TEST_F(ChannelTest, BadMessagesAreAnsweredAndTheConnectionGoesOn) {
  const OwnedFd socket = connect();
  // before hello
  ASSERT_TRUE(send_packet(socket.get(), encode_row_half_full()));
  EXPECT_EQ(next_refusal(socket.get(), MessageType::kError).text, "Say hello first");
  // unknown type, unknown version
  MessageBytes odd = encode_row_half_full();
  odd[0] = std::byte{200};
  ASSERT_TRUE(send_packet(socket.get(), odd));
  EXPECT_NE(next_refusal(socket.get(), MessageType::kError).text.find("type 200"),
            std::string::npos);
  // a later feature
  odd[0] = static_cast<std::byte>(MessageType::kMemory);
  ASSERT_TRUE(send_packet(socket.get(), odd));
  EXPECT_EQ(next_refusal(socket.get(), MessageType::kError).code, ErrorCode::kNotAvailableYet);
  // hello without, and with a wrong, descriptor
  ASSERT_TRUE(send_packet(socket.get(), hello_bytes()));
  (void)next_refusal(socket.get(), MessageType::kError);
  const int wrong[] = {keeper().row_.get()};
  ASSERT_TRUE(send_packet(socket.get(), hello_bytes(), wrong));
  EXPECT_EQ(next_refusal(socket.get(), MessageType::kRefused).text,
            "The descriptor in hello is no life line");
  // too long
  ASSERT_TRUE(send_packet(socket.get(), MessageBytes(kMaxMessageBytes + 1)));
  (void)next_refusal(socket.get(), MessageType::kError);
  // and a good one at last
  const int right[] = {life_line::far_end()};
  ASSERT_TRUE(send_packet(socket.get(), hello_bytes(), right));
  EXPECT_EQ(next(socket.get()).descriptors.size(), Welcome::kDescriptors);
  // hello twice
  ASSERT_TRUE(send_packet(socket.get(), hello_bytes(), right));
  EXPECT_EQ(next_refusal(socket.get(), MessageType::kRefused).text, "Hello was said before");
}

TEST_F(ChannelTest, SurvivesRandomBytesAndDescriptors) {
  std::mt19937_64 random(99);
  for (int round = 0; round < 300; ++round) {
    const OwnedFd socket = connect();
    for (int message = 0; message < 4; ++message) {
      MessageBytes bytes(1 + random() % 200);
      for (std::byte& byte : bytes) byte = static_cast<std::byte>(random() % 16);
      std::vector<int> descriptors(random() % 8, keeper().row_.get());
      if (!send_packet(socket.get(), bytes, descriptors)) break;
    }
  }
  const auto is_welcome = [&] {
    try {
      (void)shake_hands(address(), random_incarnation());
      return true;
    } catch (const Error&) {
      return false;  // so many connections are not seen to be closed yet
    }
  };
  EXPECT_TRUE(eventually(is_welcome));
}

TEST_F(ChannelTest, SomebodyWhoSaysNothingIsSentAwayAfterTheDeadline) {
  const OwnedFd socket = connect();
  EXPECT_EQ(next_refusal(socket.get(), MessageType::kRefused).text, "No hello came in time");
  Packet packet;
  EXPECT_TRUE(
      eventually([&] { return receive_packet(socket.get(), packet) == PacketStatus::kClosed; }));
}

TEST_F(ChannelTest, AnotherIncarnationIsNotBelieved) {
  ProducerAddress other = address();
  other.incarnation = random_incarnation();
  try {
    (void)shake_hands(other, random_incarnation());
    FAIL();
  } catch (const Error& failure) {
    EXPECT_EQ(failure.code(), ErrorCode::kNoChannel);
  }
}

ErrorCode connect_code(const ProducerAddress& where, std::chrono::milliseconds deadline) {
  try {
    (void)shake_hands(where, random_incarnation(), deadline);
  } catch (const Error& failure) {
    EXPECT_NE(std::string(failure.what()).find(where.directory), std::string::npos);
    return failure.code();
  }
  return ErrorCode::kInternal;
}

TEST_F(ChannelTest, WhoCannotBeReachedIsToldApart) {
  constexpr std::chrono::milliseconds kShort{50};
  ProducerAddress where = address();
  where.directory = "/nonexistent/limbo";
  EXPECT_EQ(connect_code(where, kShort), ErrorCode::kNoChannel);
  where = address();
  where.socket_name = "nobody.sock";
  EXPECT_EQ(connect_code(where, kShort), ErrorCode::kProducerExited);

  // A socket that listens and never answers, and then one that nobody listens on.
  const auto directory = RuntimeDirectory::open_existing(channel().directory());
  OwnedFd mute = listen_in(directory, "mute.sock");
  where.socket_name = "mute.sock";
  EXPECT_EQ(connect_code(where, kShort), ErrorCode::kNoChannel);
  mute.reset();
  EXPECT_EQ(connect_code(where, kShort), ErrorCode::kProducerExited);

  // It is provably dead: whoever starts a listener removes it, and leaves the living.
  remove_dead_sockets(directory);
  const std::filesystem::path folder = channel().directory();
  EXPECT_FALSE(std::filesystem::exists(folder / "mute.sock"));
  EXPECT_TRUE(std::filesystem::exists(folder / channel().socket_name()));
}
// As the kernel answers about a process that has been reaped: there is no pidfd any more, and its pid
// may be another's. (A thread of its own, since a filter is for good.)
TEST_F(ChannelTest, ASenderThatWasReapedIsNotLookedForByItsPid) {
  std::string met = "nothing";
  std::thread reader([&] {
    ASSERT_TRUE(refuse_socket_option(SO_PEERPIDFD, EINVAL));
    try {
      (void)shake_hands(address(), random_incarnation());
    } catch (const Error& failure) {
      met = error_code_name(failure.code());
    }
  });
  reader.join();
  EXPECT_EQ(met, "producer_exited");
}

}  // namespace
}  // namespace limbo
