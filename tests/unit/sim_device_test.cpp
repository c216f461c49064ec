// The simulated device in one process: memory, streams, events, words, data.
#include <signal.h>
#include <sys/time.h>

#include <thread>

#include "tests/support/eventually.h"
#include "tests/unit/short_host_memory.h"
#include "tests/unit/sim_support.h"

namespace limbo::testing {
namespace {

class SimDeviceTest : public ::testing::Test {
 protected:
  std::unique_ptr<SimDevice> sim_ = make_sim();
  StreamRef default_{0, nullptr};

  StreamRef stream() { return {0, sim_->create_stream(0)}; }
};

// An Error, where it is the companion that has not answered.
TEST(SimDeviceStart, HostMemoryThatRunsOutLeavesNoDescriptorOpen) {
  const auto before = Balance::now().descriptors;
  with_ever_more_memory<std::exception>([] { (void)make_simulated_device()->memory_info(0); },
                                        [&] { ASSERT_EQ(Balance::now().descriptors, before); });
}

TEST_F(SimDeviceTest, GivesAlignedMemoryUntilTheDeviceIsFull) {
  const MemoryInfo before = sim_->memory_info(0);
  EXPECT_EQ(before.total_bytes, 2048 * kMiB);
  EXPECT_EQ(before.free_bytes, before.total_bytes);

  void* const first = sim_->try_allocate(0, 20 * kMiB);
  void* const second = sim_->try_allocate(0, 512);
  ASSERT_NE(first, nullptr);
  ASSERT_NE(second, nullptr);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(first) % (2 * kMiB), 0U);
  EXPECT_EQ(sim_->memory_info(0).free_bytes, before.free_bytes - 22 * kMiB);
  EXPECT_EQ(sim_->try_allocate(0, 2048 * kMiB), nullptr);
  void* const rest = sim_->try_allocate(0, (2048 - 22) * kMiB);
  EXPECT_NE(rest, nullptr);
  EXPECT_EQ(sim_->try_allocate(0, 1), nullptr);

  sim_->free(0, rest);
  sim_->free(0, first);
  sim_->free(0, second);
  EXPECT_EQ(sim_->memory_info(0).free_bytes, before.free_bytes);
  EXPECT_EQ(sim_->balance().machine_allocations, 0U);
}

TEST_F(SimDeviceTest, RefusesWhatTheDriverRefuses) {
  void* const base = sim_->try_allocate(0, 4 * kMiB);
  EXPECT_DEVICE_ERROR(sim_->free(0, static_cast<std::byte*>(base) + 512), "invalid argument");
  EXPECT_DEVICE_ERROR(sim_->close_memory(0, base), "invalid argument");
  EXPECT_DEVICE_ERROR(static_cast<void>(sim_->try_allocate(0, 0)), "invalid argument");
  EXPECT_DEVICE_ERROR(static_cast<void>(sim_->try_allocate(1, 512)), "invalid device ordinal");
  EXPECT_DEVICE_ERROR(static_cast<void>(sim_->memory_info(-1)), "invalid device ordinal");
  EXPECT_DEVICE_ERROR(static_cast<void>(sim_->stream_id({0, base})), "invalid resource handle");
  EXPECT_DEVICE_ERROR(static_cast<void>(sim_->query_event(0, base)), "invalid resource handle");
  sim_->free(0, base);
  EXPECT_DEVICE_ERROR(sim_->free(0, base), "invalid argument");
}

TEST_F(SimDeviceTest, FillsAndCopiesInStreamOrder) {
  const StreamRef work = stream();
  auto* const data = static_cast<std::byte*>(sim_->try_allocate(0, 8 * kMiB));
  const std::size_t words = 3 * kMiB / 4;  // more than one step of the companion
  sim_->fill(work, data, 7, words);
  sim_->copy(work, data + 4 * kMiB, data, 3 * kMiB);
  sim_->fill(work, data, 8, words);
  EXPECT_EQ(read_words(*sim_, work, data + 4 * kMiB, words), std::vector<std::uint32_t>(words, 7));
  EXPECT_EQ(read_words(*sim_, work, data, 4), std::vector<std::uint32_t>(4, 8));

  const std::vector<std::uint32_t> host{1, 2, 3};
  sim_->copy_from_host(work, data, host.data(), 12);
  EXPECT_EQ(read_words(*sim_, work, data, 4), (std::vector<std::uint32_t>{1, 2, 3, 8}));
  sim_->free(0, data);
  sim_->destroy_stream(work);
}

TEST_F(SimDeviceTest, ReusesStreamHandlesAndNeverIds) {
  const StreamRef first = stream();
  const std::uint64_t id = sim_->stream_id(first);
  EXPECT_NE(id, sim_->stream_id(default_));
  sim_->destroy_stream(first);
  EXPECT_DEVICE_ERROR(static_cast<void>(sim_->stream_id(first)), "invalid resource handle");
  const StreamRef second = stream();
  EXPECT_EQ(second, first);
  EXPECT_NE(sim_->stream_id(second), id);
  EXPECT_DEVICE_ERROR(sim_->destroy_stream(default_), "invalid resource handle");
}

TEST_F(SimDeviceTest, EventsMarkTheWorkBeforeThem) {
  const StreamRef slow = stream();
  const StreamRef other = stream();
  const EventHandle event = sim_->create_event(0);
  EXPECT_TRUE(sim_->query_event(0, event));  // nothing recorded

  const SimHold hold = sim_->hold_stream(slow);
  sim_->record_event(slow, event);
  EXPECT_FALSE(sim_->query_event(0, event));

  // The waiter waits for what was recorded when it began to wait.
  sim_->wait_event(other, event);
  const EventHandle passed = sim_->create_event(0);
  sim_->record_event(other, passed);
  const StreamRef third = stream();
  sim_->record_event(third, event);
  EXPECT_TRUE(eventually([&] { return sim_->query_event(0, event); }));
  EXPECT_FALSE(sim_->query_event(0, passed));

  sim_->release_hold(hold);
  EXPECT_TRUE(eventually([&] { return sim_->query_event(0, passed); }));
  sim_->destroy_event(0, event);
  sim_->destroy_event(0, passed);
  EXPECT_DEVICE_ERROR(sim_->record_event(slow, event), "invalid resource handle");
}

TEST_F(SimDeviceTest, StreamsRunSideBySide) {
  const StreamRef held = stream();
  const SimHold hold = sim_->hold_stream(held);
  auto* const data = static_cast<std::byte*>(sim_->try_allocate(0, 2 * kMiB));
  sim_->fill(default_, data, 5, 16);
  sim_->synchronize_stream(default_);
  EXPECT_EQ(read_words(*sim_, default_, data, 16), std::vector<std::uint32_t>(16, 5));
  sim_->release_hold(hold);
  sim_->synchronize_device(0);
  sim_->free(0, data);
}

TEST_F(SimDeviceTest, WritesWordsInOrder) {
  const PlainWords words(65536);
  sim_->register_host_memory(0, words.host_memory());
  std::vector<WordWrite> batch;
  for (std::size_t i = 0; i < Device::kMaxBatchOperations; ++i) {
    batch.push_back({words.at(i), i + 1});
  }
  sim_->write_words(default_, batch);
  batch.push_back({words.at(0), 1});
  EXPECT_DEVICE_ERROR(sim_->write_words(default_, batch), "255");
  const std::vector<WordWrite> same{{words.at(300), 1}, {words.at(300), 2}, {words.at(300), 3}};
  sim_->write_words(default_, same);
  sim_->synchronize_stream(default_);
  for (std::size_t i = 0; i < Device::kMaxBatchOperations; ++i) EXPECT_EQ(words.load(i), i + 1);
  EXPECT_EQ(words.load(300), 3U);
  sim_->unregister_host_memory(words.at(0));
  EXPECT_DEVICE_ERROR(sim_->write_words(default_, same), "not in registered host memory");
}

TEST_F(SimDeviceTest, TheFirstWriteOfABatchIsNeverBehindTheSecond) {
  const PlainWords words;
  sim_->register_host_memory(0, words.host_memory());
  std::atomic<bool> done{false};
  std::thread writer([&] {
    for (std::uint64_t i = 1; i <= 5'000; ++i) {
      const std::vector<WordWrite> batch{{words.at(0), i}, {words.at(64), i}};
      sim_->write_words(default_, batch);
    }
    sim_->synchronize_stream(default_);
    done = true;
  });
  std::uint64_t behind = 0;
  while (!done) {
    const std::uint64_t second = words.load(64);
    if (words.load(0) < second) ++behind;
  }
  writer.join();
  EXPECT_EQ(behind, 0U);
  EXPECT_EQ(words.load(64), 5'000U);
}

TEST_F(SimDeviceTest, WaitsForWordsSignedAndCyclic) {
  const PlainWords words;
  sim_->register_host_memory(0, words.host_memory());
  const auto passes = [&](std::uint64_t value, std::uint64_t at_least) {
    words.store(0, value);
    words.store(1, 0);
    sim_->wait_word(default_, words.at(0), at_least);
    const std::vector<WordWrite> after{{words.at(1), 1}};
    sim_->write_words(default_, after);
    const bool passed = eventually([&] { return words.load(1) == 1; }, milliseconds(20));
    words.store(0, at_least);
    sim_->synchronize_stream(default_);
    return passed;
  };
  EXPECT_TRUE(passes(5, 5));
  EXPECT_TRUE(passes(std::uint64_t{1} << 62, 5));
  EXPECT_FALSE(passes(4, 5));
  EXPECT_FALSE(passes(~std::uint64_t{0}, 5));
}

TEST_F(SimDeviceTest, HostMemoryForWaitingIsNeverWritten) {
  const PlainWords words;
  sim_->register_host_memory(0, words.host_memory(false));
  EXPECT_DEVICE_ERROR(sim_->register_host_memory(0, words.host_memory()), "already registered");
  const std::vector<WordWrite> write{{words.at(0), 1}};
  EXPECT_DEVICE_ERROR(sim_->write_words(default_, write), "for waiting only");
  words.store(0, 9);
  sim_->wait_word(default_, words.at(0), 9);
  sim_->synchronize_stream(default_);
  EXPECT_DEVICE_ERROR(sim_->wait_word(default_, words.at(512), 9), "not in registered");
}

TEST_F(SimDeviceTest, UnregisteringLeavesEnqueuedWorkWhole) {
  const PlainWords words;
  sim_->register_host_memory(0, words.host_memory());
  const SimHold hold = sim_->hold_stream(default_);
  const std::vector<WordWrite> write{{words.at(0), 1}};
  sim_->write_words(default_, write);
  sim_->unregister_host_memory(words.at(0));
  sim_->release_hold(hold);
  sim_->synchronize_stream(default_);
  EXPECT_EQ(words.load(0), 1U);
}

TEST_F(SimDeviceTest, AStreamTakesSoManyEntriesAndThenBlocksTheHost) {
  const StreamRef full = stream();
  const EventHandle event = sim_->create_event(0);
  const SimHold hold = sim_->hold_stream(full);
  for (int i = 0; i < 1'021; ++i) sim_->record_event(full, event);
  std::atomic<bool> taken{false};
  std::thread blocked([&] {
    sim_->record_event(full, event);
    taken = true;
  });
  EXPECT_FALSE(eventually([&] { return taken.load(); }, milliseconds(30)));
  // Other streams go on.
  sim_->record_event(default_, event);
  sim_->synchronize_stream(default_);
  sim_->release_hold(hold);
  blocked.join();
  sim_->synchronize_stream(full);
}

TEST(SimSignals, InterruptNothing) {
  struct sigaction action {};
  struct sigaction before {};
  static std::atomic<int> signals{0};
  action.sa_handler = [](int) { ++signals; };  // no SA_RESTART: system calls end early
  ASSERT_EQ(::sigaction(SIGALRM, &action, &before), 0);
  const itimerval often{{0, 300}, {0, 300}};
  ASSERT_EQ(::setitimer(ITIMER_REAL, &often, nullptr), 0);
  const PlainWords words;
  {
    const auto sim = make_sim();
    sim->register_host_memory(0, words.host_memory());
    void* const data = sim->try_allocate(0, 2 * kMiB);
    for (std::uint32_t round = 0; round < 20; ++round) {
      sim->enqueue_kernel({0, nullptr}, milliseconds(1), data, 64, round);
      EXPECT_EQ(read_words(*sim, {0, nullptr}, data, 1)[0], round);
    }
    sim->unregister_host_memory(words.at(0));
    sim->free(0, data);
  }
  const itimerval never{};
  ::setitimer(ITIMER_REAL, &never, nullptr);
  ::sigaction(SIGALRM, &before, nullptr);
  EXPECT_GT(signals, 10);
}

TEST_F(SimDeviceTest, ThreadsMayCallAtOnce) {
  std::vector<std::thread> threads;
  for (std::uint32_t number = 0; number < 4; ++number) {
    threads.emplace_back([&, number] {
      const StreamRef mine = stream();
      for (std::uint32_t round = 0; round < 20; ++round) {
        void* const data = sim_->try_allocate(0, 2 * kMiB);
        const std::uint32_t value = number * 100 + round;
        sim_->fill(mine, data, value, 64);
        EXPECT_EQ(read_words(*sim_, mine, data, 64), std::vector<std::uint32_t>(64, value));
        sim_->free(0, data);
      }
      sim_->destroy_stream(mine);
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(sim_->balance().allocated, 0U);
}

}  // namespace
}  // namespace limbo::testing
