// What a consumer asks for and waits for: the channel's answers, and who hears them.
#include <thread>

#include "ipc/messages.h"
#include "ipc/owner_requests.h"
#include "tests/unit/allocator_support.h"
#include "tests/unit/channel_support.h"

namespace limbo {
namespace {

using namespace limbo::testing;

class ChannelRequests : public ChannelTest {
 protected:
  // A connection that has been welcomed.
  OwnedFd greeted() {
    OwnedFd socket = connect();
    const int line[] = {life_line::far_end()};
    EXPECT_TRUE(send_packet(socket.get(), hello_bytes(), line));
    EXPECT_EQ(next(socket.get()).descriptors.size(), Welcome::kDescriptors);
    return socket;
  }
  static Forward forward() {
    Forward message;
    message.request = 77;
    message.export_index = 3;
    message.generation = 4;
    return message;
  }
};

TEST_F(ChannelRequests, AForwardIsAnsweredWithItsNumber) {
  const OwnedFd socket = greeted();
  ASSERT_TRUE(send_packet(socket.get(), encode(forward())));
  Forwarded answer;
  ASSERT_TRUE(decode(next(socket.get()).bytes, answer));
  EXPECT_EQ(answer.request, 77U);
  EXPECT_EQ(answer.export_index, 4U);
  EXPECT_EQ(answer.generation, 5U);
  EXPECT_TRUE(keeper().noted("forward 0 3"));
}

TEST_F(ChannelRequests, ARefusalNamesItsReason) {
  const OwnedFd socket = greeted();
  keeper().refuse_ = true;
  ASSERT_TRUE(send_packet(socket.get(), encode(forward())));
  AskedInVain vain;
  ASSERT_TRUE(decode(next(socket.get()).bytes, vain));
  EXPECT_EQ(vain.request, 77U);
  EXPECT_EQ(vain.code, ErrorCode::kWithdrawn);
  EXPECT_EQ(vain.text, "It was taken back.");
  ASSERT_TRUE(send_packet(socket.get(), encode(AskTimelines{78, 5})));
  ASSERT_TRUE(decode(next(socket.get()).bytes, vain));
  EXPECT_EQ(vain.request, 78U);
  EXPECT_EQ(vain.code, ErrorCode::kGone);
}

TEST_F(ChannelRequests, AnAnswerThatNobodyCanHearIsTakenBack) {
  OwnedFd socket = greeted();
  ASSERT_TRUE(send_packet(socket.get(), encode(forward())));
  // It closes before the answer, or behind it: then the answer is one that was heard.
  socket.reset();
  EXPECT_TRUE(eventually([&] { return keeper().noted("forward 0 3"); }));
  OwnedFd another = greeted();
  ASSERT_TRUE(send_packet(another.get(), encode(TakeBack{9, 10})));
  EXPECT_TRUE(eventually([&] { return keeper().noted("take back 1 9 10"); }));
}

TEST_F(ChannelRequests, WhatWasHeardIsToldAndSoIsThatNoMoreComes) {
  OwnedFd socket = greeted();
  ASSERT_TRUE(send_packet(socket.get(), encode(Heard{9, 10})));
  EXPECT_TRUE(eventually([&] { return keeper().noted("heard 0 9 10"); }));
  ASSERT_TRUE(send_packet(socket.get(), encode(forward())));
  (void)next(socket.get());
  ASSERT_TRUE(send_packet(socket.get(), encode(Heard{4, 5})));
  socket.reset();  // what it has said last is read before that is seen
  EXPECT_TRUE(eventually([&] { return keeper().noted("hears no more 0"); }));
  EXPECT_TRUE(keeper().noted("heard 0 4 5"));
}

TEST_F(ChannelRequests, NobodyWhoHasNotSaidHelloIsAnswered) {
  const OwnedFd socket = connect();
  ASSERT_TRUE(send_packet(socket.get(), encode(forward())));
  EXPECT_EQ(next_refusal(socket.get(), MessageType::kError).text, "Say hello first");
}

// ---- the consumer's end -------------------------------------------------------------------------

class OwnerRequestsTest : public ::testing::Test {
 protected:
  OwnerRequestsTest() {
    int ends[2];
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends), 0);
    connection_ = Connection(OwnedFd(ends[0]));
    owner_.reset(ends[1]);
    requests_ = std::make_unique<OwnerRequests>(connection_);
  }
  static MessageBytes ask_for(std::uint64_t request) { return encode(AskTimelines{request, 1}); }

  Connection connection_;
  OwnedFd owner_;
  std::unique_ptr<OwnerRequests> requests_;
};

TEST_F(OwnerRequestsTest, EachAskerHearsItsOwnAnswer) {
  std::thread owner([&] {  // answers in the opposite order
    std::vector<std::uint64_t> asked;
    Packet packet;
    while (asked.size() < 2) {
      AskTimelines ask;
      if (receive_packet(owner_.get(), packet) == PacketStatus::kPacket) {
        ASSERT_TRUE(decode(packet.bytes, ask));
        asked.push_back(ask.request);
      }
    }
    for (auto request = asked.rbegin(); request != asked.rend(); ++request) {
      Packet answer;
      answer.bytes = encode(Forwarded{*request, static_cast<std::uint32_t>(*request), 1});
      EXPECT_TRUE(requests_->answered(*request, std::move(answer)));
    }
  });
  std::vector<std::thread> askers;
  for (int i = 0; i < 2; ++i) {
    askers.emplace_back([&] {
      std::uint64_t number = 0;
      const Packet answer = requests_->ask("test", [&](std::uint64_t request) {
        number = request;
        return ask_for(request);
      });
      Forwarded made;
      ASSERT_TRUE(decode(answer.bytes, made));
      EXPECT_EQ(made.request, number);
    });
  }
  for (std::thread& asker : askers) asker.join();
  owner.join();
}

TEST_F(OwnerRequestsTest, NoAnswerIsAnErrorAndALateOneFindsNobody) {
  EXPECT_ERROR((void)requests_->ask("test", ask_for), kNoChannel);
  EXPECT_FALSE(requests_->answered(1, {}));
}

TEST_F(OwnerRequestsTest, AClosedConnectionEndsTheWait) {
  const auto began = std::chrono::steady_clock::now();
  std::thread reaper([&] {
    Packet packet;
    while (receive_packet(owner_.get(), packet) != PacketStatus::kPacket) std::this_thread::yield();
    requests_->closed();
  });
  EXPECT_ERROR((void)requests_->ask("test", ask_for), kNoChannel);
  reaper.join();
  EXPECT_LT(std::chrono::steady_clock::now() - began, kAnswerDeadline);
  EXPECT_ERROR((void)requests_->ask("test", ask_for), kNoChannel);
}

}  // namespace
}  // namespace limbo
