// Connecting, with others who want the same connection: however one thread's attempt ends, nobody
// waits for it any longer.
#include "ipc/links.h"

#include <gtest/gtest.h>

#include <mutex>
#include <thread>
#include <variant>

#include "ipc/descriptor.h"
#include "ipc/fail_point_hooks.h"
#include "ipc/receive.h"
#include "tests/unit/allocator_support.h"
#include "tests/unit/played_producer.h"
#include "tests/unit/short_host_memory.h"

namespace limbo {
namespace {

using namespace limbo::testing;
using namespace std::chrono_literals;

// Welcomes everybody until it goes, and hears what they decline.
class Welcoming {
 public:
  explicit Welcoming(const PlayedProducer& producer)
      : producer_(producer), thread_([this] { live(); }) {}
  ~Welcoming() {
    over_ = true;
    thread_.join();
  }
  Welcoming(const Welcoming&) = delete;
  Welcoming& operator=(const Welcoming&) = delete;

  bool heard_decline_of(std::uint32_t export_index) {
    const std::lock_guard lock(mutex_);
    return std::find(declined_.begin(), declined_.end(), export_index) != declined_.end();
  }

 private:
  void live() {
    std::vector<OwnedFd> sockets;
    while (!over_) {
      OwnedFd next(
          ::accept4(producer_.listener.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
      if (next.valid()) sockets.push_back(std::move(next));
      std::erase_if(sockets, [&](const OwnedFd& socket) { return !answer(socket.get()); });
      std::this_thread::sleep_for(100us);
    }
  }
  // False: it is closed.
  bool answer(int socket) {
    Packet packet;
    const PacketStatus status = receive_packet(socket, packet);
    if (status != PacketStatus::kPacket) return status != PacketStatus::kClosed;
    if (!packet.descriptors.empty()) return producer_.welcome(socket);
    if (Decline decline; decode(packet.bytes, decline)) {
      const std::lock_guard lock(mutex_);
      declined_.push_back(decline.export_index);
    }
    return true;
  }

  const PlayedProducer& producer_;
  std::atomic<bool> over_{false};
  std::mutex mutex_;  // guards declined_
  std::vector<std::uint32_t> declined_;
  std::thread thread_;
};

// What a get came to.
using Outcome = std::variant<std::monostate, std::shared_ptr<ProducerLink>, ErrorCode>;

class LinksTest : public BalancedTest {
 protected:
  void SetUp() override {
    BalancedTest::SetUp();
    world_ = std::make_unique<PlayedProducer>();
    welcoming_ = std::make_unique<Welcoming>(*world_);
  }
  void TearDown() override {
    set_fail_points("");
    welcoming_.reset();
    world_.reset();
    BalancedTest::TearDown();
  }
  static Outcome get(PlayedProducer& world, std::uint32_t export_index) {
    try {
      return world.links.get(world.address(), {export_index, 1});
    } catch (const Error& failure) {
      return failure.code();
    }
  }
  // A thread's get, which nobody waits for longer than 3 s.
  class Getting {
   public:
    Getting(PlayedProducer& world, std::uint32_t export_index)
        : thread_([state = state_, &world, export_index] {
            state->outcome = get(world, export_index);
            state->is_over = true;
          }) {}
    // Nothing: it hangs, and is left behind.
    Outcome outcome() {
      if (eventually([&] { return state_->is_over.load(); }, 3s)) {
        thread_.join();
        return std::move(state_->outcome);
      }
      thread_.detach();
      return {};
    }

   private:
    struct State {
      Outcome outcome;
      std::atomic<bool> is_over{false};
    };
    std::shared_ptr<State> state_ = std::make_shared<State>();
    std::thread thread_;
  };
  // Somebody hangs in it.
  void leave_world_behind() {
    (void)welcoming_.release();
    (void)world_.release();
  }

  std::unique_ptr<PlayedProducer> world_;
  std::unique_ptr<Welcoming> welcoming_;
};

TEST_F(LinksTest, HostMemoryThatIsShortTwiceKeepsNobodyWaiting) {
  for (const long in_a_row : {1, 2, 3}) {
    bool done = false;
    for (long n = 1; !done; ++n) {
      ASSERT_LT(n, 1000);
      std::shared_ptr<ProducerLink> first;
      const ProducerAddress address = world_->address();
      {
        const ShortHostMemory memory(n, in_a_row);
        try {
          first = world_->links.get(address, {1, 1});
        } catch (const std::bad_alloc&) {
        } catch (const Error&) {
        }
        done = !memory.failed();
      }
      ASSERT_TRUE(!done || first);
      Outcome second = Getting(*world_, 2).outcome();
      if (!std::holds_alternative<std::shared_ptr<ProducerLink>>(second)) {
        leave_world_behind();
        FAIL() << in_a_row << " allocations in a row from number " << n << " on";
      }
      first.reset();
      second = {};
      world_->forget_all();
    }
  }
}

// A thread that is cancelled leaves by no exception that has words.
TEST_F(LinksTest, WhateverEndsAnAttemptWhoWaitsHasAnOutcome) {
  struct Cancelled {};
  std::uint32_t message = 10;
  for (const char* point : {"connect.before_hello", "connect.after_hello", "connect.after_welcome",
                            "connect.after_map"}) {
    SCOPED_TRACE(point);
    const std::uint32_t waiting = ++message;
    std::optional<Getting> other;
    at_fail_point(point, [&] {
      other.emplace(*world_, waiting);
      std::this_thread::sleep_for(20ms);  // it may wait by then, or come later
      throw Cancelled{};
    });
    EXPECT_THROW((void)world_->links.get(world_->address(), {1, 1}), Cancelled);
    Outcome outcome = other->outcome();
    if (std::holds_alternative<std::monostate>(outcome)) {
      leave_world_behind();
      FAIL() << "It waits for ever";
    }
    // It has the link, or the sender was told that it will not open its message.
    const bool has_failed = std::holds_alternative<ErrorCode>(outcome);
    if (has_failed) {
      EXPECT_TRUE(eventually([&] { return welcoming_->heard_decline_of(waiting); }));
    } else {
      EXPECT_FALSE(welcoming_->heard_decline_of(waiting));
    }
    outcome = {};
    world_->forget_all();
  }
}

// It would wait until the message's time is over. The device may be gone by then, and is not called.
TEST_F(LinksTest, WhenTheProcessEndsTheSenderHearsOfWhatIsNotOpened) {
  world_->links.leave();
  world_->sim->reset_calls();
  EXPECT_EQ(get(*world_, 5), Outcome(ErrorCode::kNoChannel));
  EXPECT_TRUE(eventually([&] { return welcoming_->heard_decline_of(5); }));
  EXPECT_EQ(world_->sim->calls(CallKind::kRegister), 0U);
  EXPECT_TRUE(world_->links.all().empty());
}

TEST_F(LinksTest, SoItDoesWhereTheProcessEndsWhileAThreadWaitsForAnothersLink) {
  std::optional<Getting> other;
  at_fail_point("connect.after_map", [&] {
    other.emplace(*world_, 5);
    std::this_thread::sleep_for(20ms);  // it may wait by then, or come later
    world_->links.leave();
  });
  world_->links.forget(world_->links.get(world_->address(), {1, 1}));
  EXPECT_EQ(other->outcome(), Outcome(ErrorCode::kNoChannel));
  EXPECT_TRUE(eventually([&] { return welcoming_->heard_decline_of(5); }));
  EXPECT_FALSE(welcoming_->heard_decline_of(1));
}

// Its row takes no claims any more by the time that a slot is wanted.
TEST_F(LinksTest, SoItDoesWhereTheProcessEndsInTheMidstOfAReceive) {
  ServiceThread releaser("test-releaser");
  ReleaseQueue releases(world_->device, releaser, world_->unmapper);
  LiveBlocks living;
  ReceiveCounts counts;
  Receiver receiver(world_->device, world_->links, releases, world_->unmapper, living, counts);
  Descriptor message;
  message.producer = world_->incarnation;
  message.boot = boot_id();
  message.directory = world_->address().directory;
  message.socket_name = world_->address().socket_name;
  message.ticket.export_index = 5;
  message.ticket.generation = 1;
  at_fail_point("receive.before_claim", [&] { world_->links.leave(); });
  EXPECT_ERROR((void)receiver.receive(message, {}), kNoChannel);
  for (auto& link : world_->links.all()) world_->links.forget(std::move(link));
  EXPECT_TRUE(eventually([&] { return welcoming_->heard_decline_of(5); }));
}

// From then on the driver may be gone: nothing is unregistered any more.
TEST_F(LinksTest, WhenTheProcessEndsForgottenLinksStay) {
  std::shared_ptr<ProducerLink> link = world_->links.get(world_->address(), {1, 1});
  const std::weak_ptr<ProducerLink> forgotten = link;
  world_->links.leave();
  world_->links.forget(std::move(link));
  for (int round = 0; round < 3; ++round) {
    for (ServiceThread* thread : {&world_->reaper, &world_->unmapper}) {
      thread->ring();
      run_and_wait(*thread, [] {});
    }
  }
  EXPECT_FALSE(forgotten.expired());
}

}  // namespace
}  // namespace limbo
