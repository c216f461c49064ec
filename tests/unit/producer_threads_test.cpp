// Many threads send, open, release, free, collect and ask at one time; then everything is back.
#include <atomic>
#include <deque>
#include <mutex>
#include <random>
#include <thread>

#include "tests/unit/producer_support.h"

namespace limbo {
namespace {

using namespace limbo::testing;
using protocol::ExportState;
using std::chrono::milliseconds;

class ProducerThreads : public ProducerTest {
 protected:
  struct Message {
    ExportTicket ticket;
    std::byte* data = nullptr;
    std::uint32_t mark = 0;
  };

  std::optional<Message> take() {
    const std::lock_guard lock(mutex_);
    if (messages_.empty()) return std::nullopt;
    const Message message = messages_.front();
    messages_.pop_front();
    return message;
  }
  void put(const Message& message) {
    const std::lock_guard lock(mutex_);
    messages_.push_back(message);
  }

  std::mutex mutex_;  // guards messages_
  std::deque<Message> messages_;
};

// Every message is opened by one consumer, after its owner has freed the block, which therefore
// must stay as it was written until the release.
TEST_F(ProducerThreads, NothingIsReusedUnderAHolderAndNothingIsLost) {
  constexpr int kSenders = 3;
  constexpr int kConsumers = 3;
  constexpr int kMessages = 400;
  make_producer({.exports = 2048, .pieces = 16, .claims = 1024, .timelines = 16});
  std::vector<std::unique_ptr<PlayedConsumer>> consumers;
  for (int i = 0; i < kConsumers; ++i) {
    consumers.push_back(std::make_unique<PlayedConsumer>(*producer_, i + 1));
  }
  std::atomic<int> sent{0};
  std::atomic<int> opened{0};
  std::atomic<bool> done{false};
  std::vector<std::thread> threads;
  for (int s = 0; s < kSenders; ++s) {
    threads.emplace_back([&, s] {
      std::mt19937 random(static_cast<unsigned>(s));
      for (int i = 0; i < kMessages; ++i) {
        std::byte* data = allocate(512 * (1 + random() % 8));
        const auto mark = static_cast<std::uint32_t>(s * kMessages + i + 1);
        sim_->fill({}, data, mark, 128);
        const ExportTicket ticket = share(data, 512);
        allocator_->free(data);
        put({ticket, data, mark});
        ++sent;
      }
    });
  }
  for (int c = 0; c < kConsumers; ++c) {
    threads.emplace_back([&, c] {
      PlayedConsumer& consumer = *consumers[static_cast<std::size_t>(c)];
      while (opened.load() < kSenders * kMessages) {
        const auto message = take();
        if (!message) {
          std::this_thread::yield();
          continue;
        }
        ++opened;
        ASSERT_EQ(consumer.claim(message->ticket), ClaimVerdict::kStands);
        const StreamRef stream{};
        for (const std::uint32_t word : read_words(*sim_, stream, message->data, 128)) {
          ASSERT_EQ(word, message->mark);
        }
        consumer.release(message->ticket);
      }
    });
  }
  threads.emplace_back([&] {
    while (!done.load()) {
      producer_->collect();
      (void)producer_->next_deadline();
      (void)producer_->holders();
      producer_->collect_thoroughly(0, milliseconds(1));
    }
  });
  for (std::size_t i = 0; i + 1 < threads.size(); ++i) threads[i].join();
  done = true;
  threads.back().join();
  producer_->check_invariants();
  EXPECT_EQ(sent.load(), kSenders * kMessages);
  producer_->collect();
  EXPECT_EQ(limbo_blocks(), 0);
  EXPECT_EQ(stats().closed, static_cast<std::uint64_t>(kSenders * kMessages));
}

// Messages that are opened, withdrawn, out of time, or opened by their owner, while consumers come
// and die.
TEST_F(ProducerThreads, EveryEndOfAMessageAtOneTime) {
  constexpr int kMessages = 600;
  make_producer({.exports = 1024, .pieces = 16, .claims = 512, .timelines = 16});
  std::atomic<bool> done{false};
  std::thread sender([&] {
    std::mt19937 random(3);
    for (int i = 0; i < kMessages; ++i) {
      std::byte* data = allocate(4096);
      const ExportTicket ticket = share_for(data, milliseconds(random() % 3 == 0 ? 0 : 100'000));
      put({ticket, data, 0});
      if (random() % 4 == 0) producer_->withdraw(ticket.export_index, ticket.generation);
      allocator_->free(data);
    }
    done = true;
  });
  std::thread owner([&] {
    while (!done.load()) {
      const auto message = take();
      if (!message) continue;
      try {
        const OwnOpen own =
            producer_->open_own(message->ticket.export_index, message->ticket.generation);
        allocator_->unpin(own.block.block);
      } catch (const Error& error) {
        EXPECT_NE(error.code(), ErrorCode::kInternal) << error.what();
      }
    }
  });
  std::thread consumer_thread([&] {
    while (!done.load()) {
      PlayedConsumer consumer(*producer_);
      for (int i = 0; i < 20 && !done.load(); ++i) {
        const auto message = take();
        if (message && consumer.claim(message->ticket) == ClaimVerdict::kStands && i % 2 == 0) {
          consumer.release(message->ticket);
        }
      }
      consumer.die();
    }
  });
  std::thread reaper([&] {
    while (!done.load()) producer_->run_time_limits(Producer::Clock::now());
  });
  for (std::thread* thread : {&sender, &owner, &consumer_thread, &reaper}) thread->join();
  const std::uint64_t expired = stats().expired;
  producer_->run_time_limits(Producer::Clock::now() + std::chrono::hours(1));
  producer_->check_invariants();
  EXPECT_EQ(stats().in_flight, 0U);
  // A pass closes everything; time limits run one only where they have ended something. What the
  // last free has let go, with nothing in flight, is otherwise for the next collect.
  if (stats().expired == expired) producer_->collect();
  producer_->check_invariants();
  EXPECT_EQ(stats().exports_open, 0U);
  EXPECT_EQ(stats().closed, static_cast<std::uint64_t>(kMessages));
  EXPECT_EQ(limbo_blocks(), 0);
}

}  // namespace
}  // namespace limbo
