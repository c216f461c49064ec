// The device suite: streams and events.
#pragma once

#include <memory>
#include <set>

#include "tests/support/device_suite.h"

namespace limbo::testing {

// cudaStreamPerThread, as the runtime and the driver name it.
inline const StreamRef kPerThreadStream{0, reinterpret_cast<StreamHandle>(2)};
// cudaStreamLegacy, another name of the default stream.
inline const StreamRef kLegacyStream{0, reinterpret_cast<StreamHandle>(1)};

TEST_P(DeviceSuite, StreamIdsAreNeverReused) {
  std::set<std::uint64_t> ids{device().stream_id(default_stream())};
  for (int i = 0; i < 20; ++i) {
    const StreamRef stream{0, device().create_stream(0)};
    const std::uint64_t id = device().stream_id(stream);
    EXPECT_EQ(device().stream_id(stream), id);
    EXPECT_TRUE(ids.insert(id).second) << "id " << id << " came twice";
    device().destroy_stream(stream);
  }
}

TEST_P(DeviceSuite, TheDefaultStreamHasTwoNames) {
  EXPECT_EQ(device().stream_id(kLegacyStream), device().stream_id(default_stream()));
}

TEST_P(DeviceSuite, DefaultStreamsOfTwoDevicesDiffer) {
  if (device().device_count() < 2) GTEST_SKIP() << "there is only one device";
  EXPECT_NE(device().stream_id({0, nullptr}), device().stream_id({1, nullptr}));
}

TEST_P(DeviceSuite, RefusesThePerThreadStream) {
  const EventHandle event = device().create_event(0);
  std::uint32_t* memory = new_memory(512);
  std::uint32_t value = 0;
  const auto refused = [&](auto action) { return error_of(action) == ErrorCode::kBadArgument; };
  EXPECT_TRUE(refused([&] { (void)device().stream_id(kPerThreadStream); }));
  EXPECT_TRUE(refused([&] { (void)device().is_capturing(kPerThreadStream); }));
  EXPECT_TRUE(refused([&] { device().synchronize_stream(kPerThreadStream); }));
  EXPECT_TRUE(refused([&] { device().record_event(kPerThreadStream, event); }));
  EXPECT_TRUE(refused([&] { device().wait_event(kPerThreadStream, event); }));
  EXPECT_TRUE(refused([&] { device().fill(kPerThreadStream, memory, 1, 1); }));
  EXPECT_TRUE(refused([&] { device().copy(kPerThreadStream, memory, memory + 4, 4); }));
  EXPECT_TRUE(refused([&] { device().copy_to_host(kPerThreadStream, &value, memory, 4); }));
  EXPECT_TRUE(refused([&] { device().copy_from_host(kPerThreadStream, memory, &value, 4); }));
  device().destroy_event(0, event);
}

TEST_P(DeviceSuite, AStreamRunsInOrder) {
  const StreamRef stream = new_stream();
  std::uint32_t* memory = new_memory(2 * kMiB);
  std::uint32_t* copied = new_memory(2 * kMiB);
  kernels().write_for(stream, memory, 1, 1000, std::chrono::milliseconds(20));
  device().fill(stream, memory, 2, 1000);
  device().copy(stream, copied, memory, 4000);
  device().fill(stream, memory, 3, 1000);
  EXPECT_EQ(kernels().count_different(stream, copied, 2, 1000), 0U);
  EXPECT_EQ(kernels().count_different(stream, memory, 3, 1000), 0U);
}

TEST_P(DeviceSuite, EnqueueingDoesNotWait) {
  const StreamRef busy = new_stream();
  const EventHandle event = device().create_event(0);
  const auto start = std::chrono::steady_clock::now();
  keep_busy(busy, std::chrono::milliseconds(500));
  device().record_event(busy, event);
  // Had it waited, the event would be reached.
  EXPECT_FALSE(device().query_event(0, event));
  device().synchronize_stream(busy);
  EXPECT_GE(std::chrono::steady_clock::now() - start, std::chrono::milliseconds(490));
  EXPECT_TRUE(device().query_event(0, event));
  device().destroy_event(0, event);
}

TEST_P(DeviceSuite, StreamsRunSideBySide) {
  const StreamRef busy = new_stream();
  const StreamRef other = new_stream();
  const EventHandle event = device().create_event(0);
  std::uint32_t* memory = new_memory(512);
  keep_busy(busy, std::chrono::milliseconds(500));
  device().record_event(busy, event);
  device().fill(other, memory, 9, 1);
  device().synchronize_stream(other);
  EXPECT_FALSE(device().query_event(0, event));
  device().destroy_event(0, event);
}

TEST_P(DeviceSuite, AnEventWithoutARecordIsReached) {
  const EventHandle event = device().create_event(0);
  EXPECT_TRUE(device().query_event(0, event));
  device().wait_event(new_stream(), event);
  device().destroy_event(0, event);
}

TEST_P(DeviceSuite, AnEventFollowsItsLastRecord) {
  const StreamRef stream = new_stream();
  const EventHandle event = device().create_event(0);
  device().record_event(stream, event);
  device().synchronize_stream(stream);
  EXPECT_TRUE(device().query_event(0, event));
  keep_busy(stream, std::chrono::milliseconds(300));
  device().record_event(stream, event);
  EXPECT_FALSE(device().query_event(0, event));
  EXPECT_TRUE(eventually([&] { return device().query_event(0, event); }));
  device().destroy_event(0, event);
}

TEST_P(DeviceSuite, AnEventOrdersStreams) {
  const StreamRef first = new_stream();
  const StreamRef second = new_stream();
  const EventHandle event = device().create_event(0);
  std::uint32_t* memory = new_memory(512);
  device().fill(first, memory, 1, 16);
  device().synchronize_stream(first);
  keep_busy(first, std::chrono::milliseconds(100));
  device().fill(first, memory, 2, 16);
  device().record_event(first, event);
  device().wait_event(second, event);
  EXPECT_EQ(kernels().count_different(second, memory, 2, 16), 0U);
  device().destroy_event(0, event);
}

TEST_P(DeviceSuite, AnEventMayGoBeforeItIsReached) {
  const StreamRef stream = new_stream();
  const EventHandle event = device().create_event(0);
  keep_busy(stream, std::chrono::milliseconds(50));
  device().record_event(stream, event);
  device().destroy_event(0, event);
  device().synchronize_stream(stream);
}

TEST_P(DeviceSuite, WaitingForTheDeviceWaitsForEveryStream) {
  const StreamRef first = new_stream();
  const StreamRef second = new_stream();
  const EventHandle event = device().create_event(0);
  keep_busy(first, std::chrono::milliseconds(100));
  keep_busy(second, std::chrono::milliseconds(300));
  device().record_event(second, event);
  EXPECT_FALSE(device().query_event(0, event));
  device().synchronize_device(0);
  EXPECT_TRUE(device().query_event(0, event));
  device().destroy_event(0, event);
}

TEST_P(DeviceSuite, ACapturedStreamIsNotToBeAskedForItsId) {
  const StreamRef stream = new_stream();
  const auto graphs = make_test_graphs(device());
  graphs->begin(stream, false);
  EXPECT_EQ(error_of([&] { (void)device().stream_id(stream); }), ErrorCode::kDeviceError);
  EXPECT_ANY_THROW((void)graphs->end(stream));
  EXPECT_FALSE(device().is_capturing(stream));
  EXPECT_NE(device().stream_id(stream), 0U);
}

TEST_P(DeviceSuite, NothingIsCapturingByItself) {
  EXPECT_FALSE(device().is_capturing(default_stream()));
  EXPECT_FALSE(device().is_capturing(new_stream()));
}

TEST_P(DeviceSuite, NothingIsKeptWhereNothingIsCaptured) {
  auto object = std::make_shared<int>(0);
  const std::weak_ptr<int> watched = object;
  EXPECT_FALSE(device().keep_while_graph_lives(new_stream(), std::move(object)));
  EXPECT_TRUE(watched.expired());
}

TEST_P(DeviceSuite, AGraphKeepsAnObjectUntilItIsDestroyed) {
  const StreamRef stream = new_stream();
  std::uint32_t* memory = new_memory(512);
  const auto graphs = make_test_graphs(device());
  auto object = std::make_shared<int>(0);
  const std::weak_ptr<int> watched = object;
  graphs->begin(stream, true);
  device().fill(stream, memory, 5, 16);
  EXPECT_TRUE(device().keep_while_graph_lives(stream, std::move(object)));
  auto graph = graphs->end(stream);
  EXPECT_FALSE(watched.expired());
  graph->launch(stream);
  device().synchronize_stream(stream);
  EXPECT_FALSE(watched.expired());
  EXPECT_EQ(read(memory, 16), std::vector<std::uint32_t>(16, 5));
  graph.reset();
  EXPECT_TRUE(eventually([&] { return watched.expired(); }));
}

// Destroyed while a launch of it runs.
TEST_P(DeviceSuite, AGraphKeepsAnObjectUntilItsLastLaunchHasEnded) {
  const StreamRef stream = new_stream();
  std::uint32_t* memory = new_memory(512);
  const auto graphs = make_test_graphs(device());
  auto object = std::make_shared<int>(0);
  const std::weak_ptr<int> watched = object;
  (void)kernels();
  graphs->begin(stream, false);
  kernels().write_for(stream, memory, 5, 16, std::chrono::milliseconds(500));
  EXPECT_TRUE(device().keep_while_graph_lives(stream, std::move(object)));
  auto graph = graphs->end(stream);
  const EventHandle event = device().create_event(0);
  graph->launch(stream);
  device().record_event(stream, event);
  graph.reset();
  // Looked at in this order: what is gone while the launch runs is gone too early.
  bool gone = false;
  bool over = false;
  EXPECT_TRUE(eventually([&] {
    gone = watched.expired();
    over = device().query_event(0, event);
    return gone || over;
  }));
  EXPECT_TRUE(over) << "the object went while the graph was running";
  EXPECT_TRUE(eventually([&] { return watched.expired(); }));
  device().destroy_event(0, event);
}

TEST_P(DeviceSuite, AWorkingDeviceIsNotLost) {
  EXPECT_FALSE(device().is_lost(0));
  keep_busy(new_stream(), std::chrono::milliseconds(20));
  EXPECT_FALSE(device().is_lost(0));
  EXPECT_FALSE(device().is_lost(63));
}

TEST_P(DeviceSuite, CallsWorkFromManyThreads) {
  constexpr int kThreads = 4;
  std::vector<std::thread> threads;
  std::vector<std::string> failures(kThreads);
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      try {
        const StreamRef stream{0, device().create_stream(0)};
        for (std::uint32_t i = 0; i < 25; ++i) {
          void* memory = device().try_allocate(0, 2 * kMiB);
          if (memory == nullptr) throw std::runtime_error("no memory");
          device().fill(stream, memory, i, 100);
          std::uint32_t last = ~i;
          device().copy_to_host(stream, &last, static_cast<std::uint32_t*>(memory) + 99, 4);
          if (last != i) throw std::runtime_error("another value");
          device().free(0, memory);
        }
        device().destroy_stream(stream);
      } catch (const std::exception& error) {
        failures[static_cast<std::size_t>(t)] = error.what();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::string& failure : failures) EXPECT_EQ(failure, "");
}

}  // namespace limbo::testing
