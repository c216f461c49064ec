// How a consumer's standing with a producer ends: by a word, by a death, by force; and what happens
// between two versions of the library.
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <thread>

#include "ipc/channel_socket.h"
#include "ipc/fail_points.h"
#include "tests/unit/channel_support.h"

namespace limbo {
namespace {

using testing::ChannelTest;
using testing::eventually;

class ChannelEnd : public ChannelTest {};

// ---- bye ----------------------------------------------------------------------------------------

TEST_F(ChannelEnd, AConnectionThatIsGivenUpSaysBye) {
  { const Handshake hands = shake_hands(address(), random_incarnation()); }
  EXPECT_TRUE(eventually([&] { return keeper().noted("left 0"); }));
}

TEST_F(ChannelEnd, TheMessageThatItWasMadeForIsDeclinedBefore) {
  {
    const Handshake hands = shake_hands(address(), random_incarnation(), kHandshakeDeadline,
                                        std::make_shared<PromisedMessages>(Decline{3, 4}));
  }
  EXPECT_TRUE(eventually([&] { return keeper().noted("left 0"); }));
  EXPECT_TRUE(keeper().noted("decline 0 3 4"));
  {
    Handshake hands = shake_hands(address(), random_incarnation(), kHandshakeDeadline,
                                  std::make_shared<PromisedMessages>(Decline{5, 6}));
    hands.socket.settle();
  }
  EXPECT_TRUE(eventually([&] { return keeper().noted("left 1"); }));
  EXPECT_FALSE(keeper().noted("decline 1 5 6"));
}

// A sender that was stopped, or busy, answers too late: what was declined meanwhile is declined.
TEST_F(ChannelEnd, WhoDoesNotWaitForItsWelcomeIsHeardOut) {
  set_fail_points("accept.before_lease=delay:300");
  try {
    (void)shake_hands(address(), random_incarnation(), std::chrono::milliseconds(50),
                      std::make_shared<PromisedMessages>(Decline{3, 4}));
    ADD_FAILURE() << "it was answered in time";
  } catch (const Error& failure) {
    EXPECT_EQ(failure.code(), ErrorCode::kNoChannel);
  }
  EXPECT_TRUE(eventually([&] { return keeper().noted("quiet 0"); }));
  EXPECT_TRUE(keeper().noted("decline 0 3 4"));
  set_fail_points("");
}

TEST_F(ChannelEnd, AfterABelievedByeNobodyIsWatchedAnyMore) {
  Consumer consumer = welcomed();
  ASSERT_TRUE(send_packet(consumer.socket.get(), encode_bye()));
  EXPECT_TRUE(eventually([&] { return closed(consumer.socket.get()); }));
  consumer.held.reset();
  const Handshake later = shake_hands(address(), random_incarnation());
  EXPECT_EQ(keeper().notes(), 3U) << "added, left, added";
}

// Somebody who says so and holds something all the same stays, and is looked after as before.
TEST_F(ChannelEnd, AByeThatIsNotBelievedChangesNothing) {
  keeper().believes_ = false;
  Consumer consumer = welcomed();
  ASSERT_TRUE(send_packet(consumer.socket.get(), encode_bye()));
  ASSERT_TRUE(send_packet(consumer.socket.get(), encode_row_half_full()));
  EXPECT_TRUE(eventually([&] { return keeper().noted("half 0"); }));
  EXPECT_TRUE(keeper().noted("left 0"));
  consumer.held.reset();
  consumer.socket.reset();
  EXPECT_TRUE(eventually([&] { return keeper().noted("quiet 0"); }));
}

TEST_F(ChannelEnd, ByeWithoutALeaseIsAnError) {
  const OwnedFd socket = connect();
  ASSERT_TRUE(send_packet(socket.get(), encode_bye()));
  EXPECT_EQ(next_refusal(socket.get(), MessageType::kError).text, "Say hello first");
}

// ---- reap ---------------------------------------------------------------------------------------

TEST_F(ChannelEnd, AReapLooksAtOnceAndEndsOnlyWhatIsQuiet) {
  Consumer living = welcomed();
  Consumer quarantined = welcomed(life_line::kLate | life_line::kLateWithChildren);
  channel().reap(true);
  EXPECT_EQ(keeper().notes(), 2U);
  quarantined.held.reset();
  quarantined.socket.reset();
  EXPECT_TRUE(eventually([&] {
    channel().reap(false);
    return keeper().notes() > 2;  // gone
  }));
  EXPECT_FALSE(keeper().noted("quiet 1"));
  channel().reap(true);
  EXPECT_TRUE(keeper().noted("quiet 1"));
  EXPECT_FALSE(keeper().noted("quiet 0"));
}

// ---- versions -----------------------------------------------------------------------------------

void expect_both_versions(const std::string& text, int theirs, int ours) {
  EXPECT_NE(text.find("version " + std::to_string(theirs)), std::string::npos) << text;
  EXPECT_NE(text.find("version " + std::to_string(ours)), std::string::npos) << text;
}

TEST_F(ChannelEnd, AConsumerOfAnotherVersionIsToldBothAndMayGoOn) {
  const OwnedFd socket = connect();
  const int line[] = {life_line::far_end()};
  MessageBytes later = hello_bytes();
  later[2] = std::byte{7};
  ASSERT_TRUE(send_packet(socket.get(), later, line));
  const Refused unknown = next_refusal(socket.get(), MessageType::kError);
  EXPECT_EQ(unknown.code, ErrorCode::kNoChannel);
  expect_both_versions(unknown.text, 7, kMessageVersion);

  Hello hello;
  hello.incarnation = random_incarnation();
  hello.ledger_version = 9;
  ASSERT_TRUE(send_packet(socket.get(), encode(hello), line));
  const Refused refused = next_refusal(socket.get(), MessageType::kRefused);
  EXPECT_EQ(refused.code, ErrorCode::kNoChannel);
  expect_both_versions(refused.text, 9, kLedgerVersion);

  ASSERT_TRUE(send_packet(socket.get(), hello_bytes(), line));
  EXPECT_EQ(next(socket.get()).descriptors.size(), Welcome::kDescriptors);
}

// Two of different versions would answer each other for ever.
TEST_F(ChannelEnd, AnErrorOfAnotherVersionIsNotAnswered) {
  const Consumer consumer = welcomed();
  MessageBytes odd = encode(Refused{}, MessageType::kError);
  odd[2] = std::byte{7};
  ASSERT_TRUE(send_packet(consumer.socket.get(), odd));
  odd = encode_bye();
  odd[0] = std::byte{201};
  ASSERT_TRUE(send_packet(consumer.socket.get(), odd));
  EXPECT_NE(next_refusal(consumer.socket.get(), MessageType::kError).text.find("type 201"),
            std::string::npos)
      << "and nothing before it";
}

// A producer that is played: takes one hello and answers with these bytes.
class PlayedProducer {
 public:
  PlayedProducer(const RuntimeDirectory& directory, const MessageBytes& answer)
      : listener_(listen_in(directory, "played.sock")), thread_([this, answer] {
          OwnedFd socket;
          (void)eventually([&] {
            socket.reset(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
            return socket.valid();
          });
          Packet hello;
          (void)eventually(
              [&] { return receive_packet(socket.get(), hello) == PacketStatus::kPacket; });
          (void)send_packet(socket.get(), answer);
        }) {}
  ~PlayedProducer() { thread_.join(); }

 private:
  OwnedFd listener_;
  std::thread thread_;
};

TEST_F(ChannelEnd, AProducerOfAnotherVersionIsAnErrorThatNamesBoth) {
  const auto directory = RuntimeDirectory::open_existing(channel().directory());
  MessageBytes welcome = encode(Welcome{});
  MessageBytes refused = encode(Refused{ErrorCode::kNoChannel, "whatever the later version says"});
  for (MessageBytes* answer : {&welcome, &refused}) {
    (*answer)[2] = std::byte{7};
    const PlayedProducer producer(directory, *answer);
    ProducerAddress where = address();
    where.socket_name = "played.sock";
    try {
      (void)shake_hands(where, random_incarnation());
      FAIL();
    } catch (const Error& failure) {
      EXPECT_EQ(failure.code(), ErrorCode::kNoChannel);
      expect_both_versions(failure.what(), 7, kMessageVersion);
      EXPECT_NE(std::string(failure.what()).find("same version"), std::string::npos);
    }
  }
  remove_dead_sockets(directory);
}

}  // namespace
}  // namespace limbo
