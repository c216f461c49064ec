// A consumer's end of the channel, with a producer that is played by hand.
#include "ipc/producer_link.h"

#include <gtest/gtest.h>

#include <cstring>
#include <thread>

#include "ipc/channel_socket.h"
#include "ipc/ledger_options.h"
#include "ipc/links.h"
#include "tests/unit/allocator_support.h"
#include "tests/unit/channel_support.h"
#include "tests/unit/short_host_memory.h"
#include "tests/unit/sim_support.h"

namespace limbo {
namespace {

using namespace limbo::testing;

constexpr Capacities kTables{.exports = 32, .pieces = 8, .claims = 512, .timelines = 4};

class ProducerLinkTest : public BalancedTest {
 protected:
  // Everything that has to be gone before the balance is looked at.
  struct World {
    World() {
      listener = listen_in(directory, "played.sock");
      auto* header = static_cast<LedgerHeader*>(ledger.data());
      header->magic.store(kLedgerMagic);
      header->version.store(kLedgerVersion);
      header->incarnation_high.store(incarnation.high);
      header->incarnation_low.store(incarnation.low);
    }
    ~World() {
      forget_all();
      ::unlinkat(directory.fd(), "played.sock", 0);
    }
    // What is forgotten is gone when nobody looks at it any more.
    void forget_all() {
      for (auto& link : links.all()) {
        const std::weak_ptr<ProducerLink> gone = link;
        links.forget(std::move(link));
        EXPECT_TRUE(eventually([&] { return gone.expired(); }));
      }
    }

    std::unique_ptr<SimDevice> sim = make_sim();
    const RuntimeDirectory directory = RuntimeDirectory::open_own();
    const Incarnation incarnation = random_incarnation();
    SharedMemory ledger =
        SharedMemory::create("limbo-test", ledger_layout(kTables).total, ReceiverMay::kRead);
    OwnedFd timelines = sealed_memfd(timelines_bytes(kTables));
    OwnedFd row = sealed_memfd(row_layout(kTables).total);
    OwnedFd own_timelines = sealed_memfd(timelines_bytes(kTables));
    OwnedFd listener;
    OwnedFd consumer;  // its connection
    ServiceThread reaper{"test-reaper"};
    ServiceThread unmapper{"test-unmapper"};
    Links links{*sim, random_incarnation(), reaper, unmapper};
  };
  void SetUp() override {
    BalancedTest::SetUp();
    world_ = std::make_unique<World>();
  }
  void TearDown() override {
    world_.reset();
    BalancedTest::TearDown();
  }
  // Connects while the producer says that its tables are so large.
  std::shared_ptr<ProducerLink> connect(const Capacities& says = kTables) {
    World& world = *world_;
    std::thread producer([&] {
      EXPECT_TRUE(eventually([&] {
        world.consumer.reset(
            ::accept4(world.listener.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
        return world.consumer.valid();
      }));
      Packet hello;
      EXPECT_TRUE(eventually(
          [&] { return receive_packet(world.consumer.get(), hello) == PacketStatus::kPacket; }));
      Welcome welcome;
      welcome.incarnation = world.incarnation;
      welcome.capacities = says;
      const int descriptors[] = {world.ledger.fd(), world.timelines.get(), world.row.get(),
                                 life_line::far_end(), world.own_timelines.get()};
      EXPECT_TRUE(send_packet(world.consumer.get(), encode(welcome), descriptors));
    });
    std::shared_ptr<ProducerLink> link;
    std::exception_ptr failure;
    try {
      link = world.links.get({world.incarnation, world.directory.path(), "played.sock"}, {1, 1});
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

  std::unique_ptr<World> world_;
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
    Capacities says = kTables;
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

}  // namespace
}  // namespace limbo
