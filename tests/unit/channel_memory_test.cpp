// Host memory that runs out on the reaper, or on the worker: whatever a consumer does just then, the
// producer lives, and every lease that it has given out ends.
#include <gtest/gtest.h>

#include <optional>

#include "tests/unit/channel_support.h"
#include "tests/unit/short_host_memory.h"

namespace limbo {
namespace {

using namespace limbo::testing;

class ChannelMemory : public ChannelTest {
 protected:
  // `function` again and again, each time with memory for one allocation more on the reaper; `before`
  // it there is plenty.
  template <typename Before, typename Function>
  void with_ever_more_memory(Before&& before, Function&& function) {
    bool done = false;
    for (long n = 1; !done; ++n) {
      ASSERT_LT(n, 1000);
      before();
      std::optional<ShortHostMemory> memory;
      run_and_wait(stack_->reaper, [&] { memory.emplace(n); });
      function();
      run_and_wait(stack_->reaper, [&] {
        done = !memory->failed();
        memory.reset();
      });
      ASSERT_FALSE(HasFailure()) << "with memory for " << n - 1 << " allocations";
    }
  }
  // All consumers are gone by now.
  void expect_all_over() {
    EXPECT_TRUE(eventually([&] {
      channel().reap(true);
      return keeper().count("quiet") == keeper().count("add");
    }));
  }
  // Whatever comes first, an answer or the end.
  static bool hears_something(int socket) {
    Packet packet;
    return eventually([&] { return receive_packet(socket, packet) != PacketStatus::kNothing; });
  }
};

TEST_F(ChannelMemory, AHelloIsAnsweredOrTheConnectionEnds) {
  const auto nothing = [] {};
  with_ever_more_memory(nothing, [&] {
    const life_line::Ends line = life_line::make_ends();
    const OwnedFd held(line.held);
    const OwnedFd far(line.far);
    const OwnedFd socket = connect();
    const int sent[] = {far.get()};
    (void)send_packet(socket.get(), hello_bytes(), sent);  // perhaps it is closed already
    EXPECT_TRUE(hears_something(socket.get()));
  });
  expect_all_over();
}

// It has gone before its welcome; nobody would end its lease later.
TEST_F(ChannelMemory, WhoIsHandedNothingLeavesNoLease) {
  bool done = false;
  for (long n = 1; !done; ++n) {
    ASSERT_LT(n, 1000);
    std::optional<ShortHostMemory> memory;  // the worker's
    run_and_wait(stack_->worker, [&] { memory.emplace(n); });
    say_hello_and_go();
    const std::string quiet = "quiet " + std::to_string(n - 1);
    EXPECT_TRUE(eventually([&] { return keeper().noted(quiet); })) << n;
    run_and_wait(stack_->worker, [&] {
      done = !memory->failed();
      memory.reset();
    });
  }
}

// Whoever is let in is heard.
TEST_F(ChannelMemory, AMessageIsTakenLater) {
  std::uint64_t number = 0;
  Consumer consumer = welcomed();
  const auto next_number = [&] { ++number; };
  with_ever_more_memory(next_number, [&] {
    for (const MessageBytes& message :
         {encode(Heard{7, number}), encode(Decline{8, number}), encode(TakeBack{9, number})}) {
      ASSERT_TRUE(send_packet(consumer.socket.get(), message));
    }
    for (const char* line : {"heard 0 7 ", "decline 0 8 ", "take back 0 9 "}) {
      EXPECT_TRUE(eventually([&] { return keeper().noted(line + std::to_string(number)); }))
          << line;
    }
  });
  consumer = {};
  expect_all_over();
}

TEST_F(ChannelMemory, AByeIsHeardLater) {
  Consumer consumer;
  with_ever_more_memory([&] { consumer = welcomed(); },
                        [&] {
                          ASSERT_TRUE(send_packet(consumer.socket.get(), encode_bye()));
                          EXPECT_TRUE(eventually([&] { return closed(consumer.socket.get()); }));
                          EXPECT_EQ(keeper().count("left"), keeper().count("add"));
                        });
}

TEST_F(ChannelMemory, AnEndIsSeenLater) {
  Consumer consumer;
  Forward forward;
  forward.generation = 1;
  const auto begin = [&] {
    consumer = welcomed();
    ASSERT_TRUE(send_packet(consumer.socket.get(), encode(forward)));
    (void)next(consumer.socket.get());
  };
  with_ever_more_memory(begin, [&] {
    consumer.socket.reset();
    EXPECT_TRUE(
        eventually([&] { return keeper().count("hears no more") == keeper().count("add"); }));
    consumer.held.reset();
    const std::string gone = "gone " + std::to_string(keeper().count("add") - 1) + " ";
    EXPECT_TRUE(eventually([&] { return keeper().count(gone) > 0; }));
    expect_all_over();
  });
}

TEST_F(ChannelMemory, AForwardIsAnsweredOrTakenBack) {
  Consumer consumer = welcomed();
  Forward forward;
  forward.generation = 1;
  const auto nothing = [] {};
  with_ever_more_memory(nothing, [&] {
    ASSERT_TRUE(send_packet(consumer.socket.get(), encode(forward)));
    EXPECT_TRUE(eventually([&] {
      Packet packet;
      return receive_packet(consumer.socket.get(), packet) == PacketStatus::kPacket ||
             keeper().count("take back 0") > 0;
    }));
  });
  consumer = {};
  expect_all_over();
}

}  // namespace
}  // namespace limbo
