// A consumer's end of the channel, with a producer that is played by hand.
#include "ipc/producer_link.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <memory>
#include <thread>

#include "ipc/ledger_options.h"
#include "tests/unit/played_producer.h"
#include "tests/unit/short_host_memory.h"

namespace limbo {
namespace {

using namespace limbo::testing;

class ProducerLinkTest : public BalancedTest {
 protected:
  void SetUp() override {
    BalancedTest::SetUp();
    world_ = std::make_unique<PlayedProducer>();
  }
  void TearDown() override {
    world_.reset();
    BalancedTest::TearDown();
  }
  // Connects while the producer says that its tables are so large.
  std::shared_ptr<ProducerLink> connect(const Capacities& says = kPlayedTables) {
    PlayedProducer& world = *world_;
    std::thread producer([&] {
      EXPECT_TRUE(eventually([&] {
        world.consumer.reset(
            ::accept4(world.listener.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
        return world.consumer.valid();
      }));
      Packet hello;
      EXPECT_TRUE(eventually(
          [&] { return receive_packet(world.consumer.get(), hello) == PacketStatus::kPacket; }));
      EXPECT_TRUE(world.welcome(world.consumer.get(), says));
    });
    std::shared_ptr<ProducerLink> link;
    std::exception_ptr failure;
    try {
      link = world.links.get(world.address(), {1, 1});
    } catch (...) {
      failure = std::current_exception();
    }
    producer.join();
    if (failure) std::rethrow_exception(failure);
    return link;
  }
  void say(const MessageBytes& message) {
    ASSERT_TRUE(send_packet(world_->consumer.get(), message));
  }
  Refused error() {
    Packet packet;
    EXPECT_TRUE(eventually(
        [&] { return receive_packet(world_->consumer.get(), packet) == PacketStatus::kPacket; }));
    MessageHeader header;
    EXPECT_EQ(check_frame(packet.bytes, packet.descriptors.size(), header), "");
    EXPECT_EQ(header.type, static_cast<std::uint16_t>(MessageType::kError));
    Refused refused;
    EXPECT_TRUE(decode(packet.bytes, refused));
    return refused;
  }

  std::unique_ptr<PlayedProducer> world_;
};

TEST_F(ProducerLinkTest, WhatItCannotTakeIsAnsweredAndTheConnectionGoesOn) {
  const auto link = connect();
  MessageBytes odd = encode(Forwarded{});
  odd[0] = std::byte{200};
  say(odd);
  EXPECT_NE(error().text.find("type 200"), std::string::npos);

  odd = encode(Forwarded{});
  odd[2] = std::byte{7};
  say(odd);
  const std::string text = error().text;
  EXPECT_NE(text.find("version 7"), std::string::npos) << text;
  EXPECT_NE(text.find("version " + std::to_string(kMessageVersion)), std::string::npos) << text;

  odd = encode_bye();
  odd[0] = static_cast<std::byte>(MessageType::kUnmapWanted);
  say(odd);
  EXPECT_EQ(error().code, ErrorCode::kNotAvailableYet);

  say(encode_bye());  // a consumer's
  EXPECT_NE(error().text.find("\"bye\""), std::string::npos);
  say(MessageBytes(kMaxMessageBytes + 1));
  EXPECT_EQ(error().text, kCutMessage);
  EXPECT_TRUE(link->usable());
}

// Two of different versions would answer each other for ever.
TEST_F(ProducerLinkTest, AnErrorIsNotAnswered) {
  const auto link = connect();
  MessageBytes odd = encode(Refused{}, MessageType::kError);
  say(odd);
  odd[2] = std::byte{7};
  say(odd);
  odd = encode_bye();
  odd[0] = std::byte{201};
  say(odd);
  EXPECT_NE(error().text.find("type 201"), std::string::npos) << "and nothing before it";
}

TEST_F(ProducerLinkTest, TablesBeyondWhatAnyCanBeAreRefusedWithTheirSize) {
  for (std::uint32_t Capacities::*which :
       {&Capacities::claims, &Capacities::pieces, &Capacities::timelines}) {
    Capacities says = kPlayedTables;
    says.*which = kMostCapacities.*which + 512;
    std::string text;
    try {
      (void)connect(says);
    } catch (const Error& failure) {
      EXPECT_EQ(failure.code(), ErrorCode::kNoChannel);
      text = failure.what();
    }
    EXPECT_NE(text.find(std::to_string(says.*which)), std::string::npos) << text;
    EXPECT_NE(text.find(std::to_string(kMostCapacities.*which)), std::string::npos) << text;
    EXPECT_TRUE(connect()->usable());
    world_->forget_all();
  }
}

// Its watches are the reaper's: nobody else may end them.
TEST_F(ProducerLinkTest, HostMemoryThatRunsOutForgetsAllOfALinkOrNothing) {
  bool done = false;
  for (long n = 1; !done; ++n) {
    ASSERT_LT(n, 100);
    auto link = connect();
    const std::weak_ptr<ProducerLink> gone = link;
    {
      auto passed = link;
      const ShortHostMemory memory(n);
      try {
        world_->links.forget(std::move(passed));
      } catch (const std::bad_alloc&) {
      }
      done = !memory.failed();
    }
    EXPECT_EQ(world_->links.all().size(), done ? 0U : 1U);
    link.reset();
    world_->forget_all();
    EXPECT_TRUE(eventually([&] { return gone.expired(); }));
  }
}

// The device would say that they are registered already, for ever.
TEST_F(ProducerLinkTest, TablesThatWereRefusedOnceAreRegisteredByTheNextCall) {
  for (const int refused : {1, 2}) {
    auto link = connect();
    FaultPlan& faults = world_->sim->faults();
    faults.add("register:" + std::to_string(refused) + "=fail");
    faults.add("unregister:*=fail");
    EXPECT_DEVICE_ERROR((void)link->register_tables(0), "");
    faults.clear();
    EXPECT_TRUE(link->register_tables(0)) << refused;
    EXPECT_FALSE(link->register_tables(0)) << refused;
    const std::uint64_t before = world_->sim->calls(CallKind::kUnregister);
    link.reset();
    world_->forget_all();
    // The unmapper ends it a moment later.
    EXPECT_TRUE(
        eventually([&] { return world_->sim->calls(CallKind::kUnregister) == before + 2; }));
  }
}

// Whoever has it last may be any thread of the program, with a block that was released long ago.
TEST_F(ProducerLinkTest, WhoeverHasAForgottenLinkLastDoesNotUnmapIt) {
  auto link = connect();
  (void)link->register_tables(0);
  const auto holder = std::make_shared<std::shared_ptr<ProducerLink>>(link);
  world_->links.forget(std::move(link));
  EXPECT_TRUE(eventually([&] { return holder->use_count() == 1; }));
  world_->sim->faults().add("unregister:1=hang");
  std::atomic<bool> dropped{false};
  std::thread user([&] {
    holder->reset();
    dropped.store(true);
  });
  EXPECT_TRUE(world_->sim->faults().wait_for_hanging(1, kPatience));
  EXPECT_TRUE(eventually([&] { return dropped.load(); }));
  world_->sim->faults().clear();
  user.join();
}

// Its timelines are writable there, and in the processes that it lends them to. What a link's end cannot
// see to now it sees to later, and holds up nobody meanwhile.
TEST_F(ProducerLinkTest, APeerThatSetsANumberBackDoesNotHoldUpTheUnmapper) {
  SimDevice& sim = *world_->sim;
  const StreamRef stream{0, sim.create_stream(0)};
  auto link = connect();
  SharedWord& word = world_->own_timeline();
  (void)link->advance({&stream, 1});
  sim.synchronize_stream(stream);
  EXPECT_EQ(word.exchange(0), 1U);
  sim.faults().add("synchronize:*=fail");  // as where memory has run out
  sim.reset_calls();

  world_->links.forget(std::move(link));
  EXPECT_TRUE(eventually([&] { return sim.calls(CallKind::kSynchronize) > 0; }));
  const auto passed = std::make_shared<std::atomic<bool>>(false);
  world_->unmapper.post([passed] { passed->store(true); });
  EXPECT_TRUE(eventually([&] { return passed->load(); }, std::chrono::seconds(3)));
  EXPECT_EQ(sim.calls(CallKind::kUnregister), 0U);
  // and it is looked at again
  EXPECT_TRUE(eventually([&] { return sim.calls(CallKind::kSynchronize) > 2; }));
  sim.faults().clear();
  EXPECT_TRUE(eventually([&] { return sim.calls(CallKind::kUnregister) == 1; }));
  word.store(1);  // or a unmapper that waits for it would wait for ever
  sim.destroy_stream(stream);
}

}  // namespace
}  // namespace limbo
