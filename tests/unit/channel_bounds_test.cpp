// Whoever asks more of a producer's channel than it should waits, or is refused, itself; everybody
// else goes on.
#include <gtest/gtest.h>
#include <linux/sockios.h>
#include <sys/ioctl.h>

#include <functional>
#include <thread>

#include "ipc/fail_point_hooks.h"
#include "tests/support/child_process.h"
#include "tests/unit/channel_support.h"

namespace limbo {
namespace {

using namespace limbo::testing;

constexpr ChannelBounds kBounds;

// Publishes one name, and counts what was made under it in vain.
class FakeAnswerer final : public Answerer {
 public:
  Acquired acquire_for_other(const std::string& /*name*/) override {
    return {Bytes(100), {++acquired_, 1}};
  }
  void not_delivered(const protocol::ClaimTarget& /*made*/) override { ++not_delivered_; }
  std::vector<std::string> published() override { return {"name"}; }
  std::vector<Holder> lent_to() override { return {}; }
  Reaped reaped() override { return {}; }

  std::atomic<std::uint32_t> acquired_{0};
  std::atomic<std::uint32_t> not_delivered_{0};
};

class ChannelBoundsTest : public ChannelTest {
 protected:
  void SetUp() override {
    BalancedTest::SetUp();
    stack_ = std::make_unique<Stack>(&answerer_);
  }
  void TearDown() override {
    let_worker_go();
    ChannelTest::TearDown();
  }
  // Holds the worker up until it is let go.
  void hold_worker() {
    stack_->worker.post([this] {
      while (!go_) std::this_thread::yield();
    });
  }
  void let_worker_go() { go_ = true; }
  // Sends one message again and again; how often before the other end took no more for a while.
  static std::size_t send_until_full(int socket, const MessageBytes& message, std::size_t most) {
    for (std::size_t sent = 0; sent < most; ++sent) {
      const bool taken =
          eventually([&] { return send_packet(socket, message); }, std::chrono::milliseconds(200));
      if (!taken) return sent;
    }
    return most;
  }
  // Bytes that have been sent and are yet to be read.
  static int unread(int socket) {
    int bytes = -1;
    EXPECT_EQ(::ioctl(socket, SIOCOUTQ, &bytes), 0);
    return bytes;
  }
  MessageBytes acquire() {
    Question question;
    question.type = MessageType::kAcquire;
    question.name = "name";
    return encode(question);
  }

  FakeAnswerer answerer_;
  std::atomic<bool> go_{false};
};

// ---- messages -----------------------------------------------------------------------------------

// A bye makes the worker look at a whole row. It is said once; more of them are nothing.
TEST_F(ChannelBoundsTest, ManyByesAreOne) {
  keeper().believes_ = false;
  const Consumer talker = welcomed();
  const Consumer other = welcomed();
  hold_worker();
  EXPECT_EQ(send_until_full(talker.socket.get(), encode_bye(), 100'000), 100'000U);
  ASSERT_TRUE(send_packet(talker.socket.get(), encode(Decline{1, 1})));
  ASSERT_TRUE(send_packet(other.socket.get(), encode(Decline{2, 2})));
  let_worker_go();
  EXPECT_TRUE(eventually(
      [&] { return keeper().noted("decline 0 1 1") && keeper().noted("decline 1 2 2"); }));
  EXPECT_EQ(keeper().count("left 0"), 1U);
}

TEST_F(ChannelBoundsTest, ManyBellsAreOneUntilItIsHeard) {
  const Consumer talker = welcomed();
  hold_worker();
  EXPECT_EQ(send_until_full(talker.socket.get(), encode_row_half_full(), 10'000), 10'000U);
  EXPECT_EQ(send_until_full(talker.socket.get(), encode_context_lost(), 10'000), 10'000U);
  EXPECT_TRUE(eventually([&] { return unread(talker.socket.get()) == 0; }));
  let_worker_go();
  ASSERT_TRUE(send_packet(talker.socket.get(), encode(Decline{1, 1})));
  EXPECT_TRUE(eventually([&] { return keeper().noted("decline 0 1 1"); }));
  EXPECT_LE(keeper().count("half 0"), 2U);
  EXPECT_LE(keeper().count("lost 0"), 2U);
  // And they are heard again.
  const std::size_t bells = keeper().count("half 0");
  ASSERT_TRUE(send_packet(talker.socket.get(), encode_row_half_full()));
  EXPECT_TRUE(eventually([&] { return keeper().count("half 0") == bells + 1; }));
}

TEST_F(ChannelBoundsTest, WhoTalksFasterThanTheWorkerWaitsAndNobodyElseDoes) {
  const Consumer talker = welcomed();
  const Consumer other = welcomed();
  hold_worker();
  // What the kernel keeps for it, and what waits for the worker.
  const std::size_t sent = send_until_full(talker.socket.get(), encode(Decline{1, 1}), 100'000);
  EXPECT_LT(sent, 2'000U);
  EXPECT_GE(sent, kBounds.undone);
  ASSERT_TRUE(send_packet(other.socket.get(), encode(Decline{2, 2})));
  (void)welcomed();  // the reaper has read that
  let_worker_go();
  EXPECT_TRUE(eventually([&] { return keeper().count("decline 0") == sent; })) << "none is lost";
  std::size_t before = 0;
  for (const std::string& line : keeper().lines()) {
    if (line == "decline 1 2 2") break;
    before += line == "decline 0 1 1" ? 1 : 0;
  }
  EXPECT_LE(before, kBounds.undone);
  EXPECT_EQ(keeper().count("decline 1 2 2"), 1U);
}

TEST_F(ChannelBoundsTest, QuestionsWaitAsWell) {
  const OwnedFd talker = connect();
  Question question;
  question.type = MessageType::kAcquire;
  question.name = "name";
  hold_worker();
  EXPECT_LT(send_until_full(talker.get(), encode(question), 100'000), 2'000U);
  const Handshake other = shake_hands(address(), random_incarnation());
  let_worker_go();
}

// Who sends on in a loop is answered, whatever the worker waits for.
TEST_F(ChannelBoundsTest, SendingOnAndHearingDoNotWaitForTheWorker) {
  Consumer talker = welcomed();
  hold_worker();
  for (std::uint32_t i = 0; i < 3 * kBounds.undone; ++i) {
    Forward forward;
    forward.request = i;
    forward.export_index = i;
    forward.generation = 1;
    ASSERT_TRUE(send_packet(talker.socket.get(), encode(forward)));
    Packet packet;
    ASSERT_TRUE(eventually(
        [&] { return receive_packet(talker.socket.get(), packet) == PacketStatus::kPacket; },
        std::chrono::seconds(5)))
        << i;
    Forwarded made;
    ASSERT_TRUE(decode(packet.bytes, made));
    ASSERT_TRUE(
        send_packet(talker.socket.get(), encode(Heard{made.export_index, made.generation})));
  }
  talker.socket.reset();
  EXPECT_TRUE(eventually([&] { return keeper().count("heard 0") == 3 * kBounds.undone; }));
  let_worker_go();
  EXPECT_TRUE(eventually([&] { return keeper().noted("hears no more 0"); }));
  EXPECT_EQ(keeper().count("heard 0"), 3 * kBounds.undone);
}

// What is closed while it waits is read to its end, and closed then.
TEST_F(ChannelBoundsTest, WhatWasSaidBeforeTheEndIsHeard) {
  std::size_t sent = 0;
  {
    Consumer talker = welcomed();
    hold_worker();
    sent = send_until_full(talker.socket.get(), encode(Decline{1, 1}), 100'000);
    talker.socket.reset();
    let_worker_go();
    EXPECT_TRUE(eventually([&] { return keeper().count("decline 0") == sent; }));
  }
  EXPECT_TRUE(eventually([&] { return keeper().count("gone 0") == 1; }));
}

// A dead process's last words are read before its lease ends, also those that waited.
TEST_F(ChannelBoundsTest, TheEndOfALeaseComesBehindWhatWaited) {
  Consumer talker = welcomed();
  hold_worker();
  const std::size_t sent = send_until_full(talker.socket.get(), encode(Decline{1, 1}), 100'000);
  talker = {};
  const Consumer later = welcomed();
  let_worker_go();
  EXPECT_TRUE(eventually([&] {
    channel().reap(true);
    return keeper().noted("quiet 0");
  }));
  EXPECT_EQ(keeper().count("decline 0"), sent);
  EXPECT_EQ(keeper().lines().back(), "quiet 0");
}

TEST_F(ChannelBoundsTest, WhatIsAcquiredMustBeHeardOf) {
  const OwnedFd asker = connect();
  std::string refusal;
  std::uint32_t answers = 0;
  for (std::uint32_t i = 0; i < 4 * kBounds.unheard && refusal.empty(); ++i) {
    ASSERT_TRUE(send_packet(asker.get(), acquire()));
    const Packet packet = next(asker.get());
    Answer answer;
    Refused refused;
    if (decode(packet.bytes, answer) && answer.to == MessageType::kAcquire) {
      ++answers;
    } else if (decode(packet.bytes, refused)) {
      refusal = refused.text;
    }
  }
  EXPECT_EQ(answers, kBounds.unheard);
  EXPECT_NE(refusal.find("heard"), std::string::npos) << refusal;
  // Who says so goes on.
  ASSERT_TRUE(send_packet(asker.get(), encode(Heard{1, 1})));
  ASSERT_TRUE(send_packet(asker.get(), acquire()));
  Answer answer;
  EXPECT_TRUE(decode(next(asker.get()).bytes, answer));
}

// ---- leases and connections ---------------------------------------------------------------------

LIMBO_CHILD_ROLE(channel_guest) {
  const Incarnation producer{std::stoull(child.argument(2)), std::stoull(child.argument(3))};
  const Handshake hands =
      shake_hands({producer, child.argument(0), child.argument(1)}, random_incarnation());
  child.send("welcome " + std::to_string(hands.lease_number));
  child.park();
  return 0;
}

class ChannelLeases : public ChannelBoundsTest {
 protected:
  [[nodiscard]] ChildProcess guest() {
    const ProducerAddress where = address();
    return ChildProcess("channel_guest",
                        {where.directory, where.socket_name, std::to_string(where.incarnation.high),
                         std::to_string(where.incarnation.low)});
  }
};

TEST_F(ChannelLeases, OneProcessHasOnlySoManyAndHearsWhy) {
  std::uint32_t welcomes = 0;
  std::string refusal;
  for (int i = 0; i < 100; ++i) {
    const OwnedFd socket = connect();
    const int line[] = {life_line::far_end()};
    ASSERT_TRUE(send_packet(socket.get(), hello_bytes(), line));
    const Packet packet = next(socket.get());
    Refused refused;
    if (packet.descriptors.size() == Welcome::kDescriptors) {
      ++welcomes;
    } else if (decode(packet.bytes, refused)) {
      EXPECT_EQ(refused.code, ErrorCode::kNoChannel);
      refusal = refused.text;
    }
  }
  EXPECT_EQ(welcomes, kBounds.leases);
  EXPECT_NE(refusal.find("rocess " + std::to_string(::getpid())), std::string::npos) << refusal;
  EXPECT_NE(refusal.find(std::to_string(kBounds.leases)), std::string::npos) << refusal;
  ChildProcess other = guest();
  EXPECT_EQ(other.receive(), "welcome " + std::to_string(kBounds.leases));
  other.kill();
  EXPECT_TRUE(
      eventually([&] { return keeper().noted("quiet " + std::to_string(kBounds.leases)); }));
}

// A lease that is given back does not count.
TEST_F(ChannelLeases, WhoSaysByeMayComeAgain) {
  for (std::uint32_t i = 0; i < 4 * kBounds.leases; ++i) {
    const Consumer consumer = welcomed();
    ASSERT_TRUE(send_packet(consumer.socket.get(), encode_bye()));
    ASSERT_TRUE(eventually([&] { return closed(consumer.socket.get()); }));
  }
}

TEST_F(ChannelLeases, OneProcessHasOnlySoManyConnectionsThatSayNothing) {
  std::vector<OwnedFd> sockets;
  for (std::uint32_t i = 0; i < kBounds.strangers; ++i) sockets.push_back(connect());
  const OwnedFd refused = connect();
  const std::string text = next_refusal(refused.get(), MessageType::kRefused).text;
  EXPECT_NE(text.find(std::to_string(kBounds.strangers)), std::string::npos) << text;
  ChildProcess other = guest();
  EXPECT_EQ(other.receive(), "welcome 0");
  // One fewer is one more.
  sockets.pop_back();
  EXPECT_TRUE(eventually([&] {
    const OwnedFd socket = connect();
    const int line[] = {life_line::far_end()};
    if (!send_packet(socket.get(), hello_bytes(), line)) return false;
    return next(socket.get()).descriptors.size() == Welcome::kDescriptors;
  }));
}

// Each that is let in makes another come.
TEST_F(ChannelLeases, WhoComesWithoutEndIsLetInWithOthersInBetween) {
  const Consumer early = welcomed();
  Forward forward;
  forward.export_index = 7;
  forward.generation = 1;
  std::vector<OwnedFd> came;
  bool said = false;
  const std::function<void()> another = [&] {
    if (keeper().noted("forward 0 7") || came.size() > 2 * kBounds.strangers) return;
    came.push_back(connect());
    at_fail_point("watch.before_add", another);
    // Said when the first is being let in already.
    if (came.size() == 2) said = send_packet(early.socket.get(), encode(forward));
  };
  run_and_wait(stack_->reaper, another);
  (void)next(early.socket.get());
  EXPECT_TRUE(said);
  run_and_wait(stack_->reaper, [] { at_fail_point("watch.before_add", {}); });
  EXPECT_LT(came.size(), kBounds.strangers);
}

}  // namespace
}  // namespace limbo
