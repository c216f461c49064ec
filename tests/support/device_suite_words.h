// The device suite: words in host memory that streams write and wait on.
#pragma once

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tests/support/device_suite_child.h"
#include "tests/support/shared_words.h"

namespace limbo::testing {

// Long enough that a wait which lets its stream go by mistake has done so.
inline constexpr std::chrono::milliseconds kAWhile{50};

TEST_P(DeviceSuite, WordsAreWrittenBehindEarlierWork) {
  const StreamRef stream = new_stream();
  SharedWords words(device());
  keep_busy(stream, std::chrono::milliseconds(300));
  const WordWrite write{words.word(0), 5};
  device().write_words(stream, {&write, 1});
  EXPECT_EQ(words.load(0), 0U);
  EXPECT_TRUE(eventually([&] { return words.load(0) == 5; }));
  device().synchronize_stream(stream);
}

TEST_P(DeviceSuite, ABatchLandsInOrder) {
  const StreamRef stream = new_stream();
  SharedWords words(device());
  constexpr std::uint64_t kRounds = 2000;
  for (std::uint64_t i = 1; i <= kRounds; ++i) {
    const std::array<WordWrite, 3> batch{
        {{words.word(0), i}, {words.word(64), i}, {words.word(128), i}}};
    device().write_words(stream, batch);
    // Whoever sees the last sees the ones before it.
    const std::uint64_t last = words.load(128);
    const std::uint64_t middle = words.load(64);
    const std::uint64_t first = words.load(0);
    ASSERT_GE(middle, last);
    ASSERT_GE(first, middle);
  }
  EXPECT_TRUE(eventually([&] { return words.load(128) == kRounds; }));
  EXPECT_EQ(words.load(64), kRounds);
  EXPECT_EQ(words.load(0), kRounds);
  device().synchronize_stream(stream);
}

TEST_P(DeviceSuite, ABatchHasALargestSize) {
  const StreamRef stream = new_stream();
  SharedWords words(device());
  std::vector<WordWrite> batch;
  for (std::size_t i = 0; i < Device::kMaxBatchOperations + 1; ++i) {
    batch.push_back({words.word(i), i + 1});
  }
  EXPECT_EQ(error_of([&] { device().write_words(stream, batch); }), ErrorCode::kDeviceError);
  device().synchronize_stream(stream);
  EXPECT_EQ(words.load(0), 0U);
  batch.pop_back();
  device().write_words(stream, batch);
  device().write_words(stream, {});
  device().synchronize_stream(stream);
  for (std::size_t i = 0; i < batch.size(); ++i) EXPECT_EQ(words.load(i), i + 1);
}

TEST_P(DeviceSuite, WordsMustBeRegistered) {
  const StreamRef stream = new_stream();
  alignas(8) static std::uint64_t elsewhere[2] = {};
  const WordWrite write{&elsewhere[0], 1};
  EXPECT_EQ(error_of([&] { device().write_words(stream, {&write, 1}); }), ErrorCode::kDeviceError);
  EXPECT_EQ(error_of([&] { device().wait_word(stream, &elsewhere[0], 1); }),
            ErrorCode::kDeviceError);
  EXPECT_EQ(error_of([&] { device().unregister_host_memory(elsewhere); }), ErrorCode::kDeviceError);
  SharedWords words(device());
  const WordWrite beyond{words.word(512), 1};
  EXPECT_EQ(error_of([&] { device().write_words(stream, {&beyond, 1}); }), ErrorCode::kDeviceError);
  EXPECT_EQ(error_of([&] { device().write_words(stream, {&write, 1}); }), ErrorCode::kDeviceError);
  device().synchronize_stream(stream);
  EXPECT_EQ(elsewhere[0], 0U);
}

TEST_P(DeviceSuite, WordsAreRefusedOnThePerThreadStream) {
  const StreamRef per_thread{0, reinterpret_cast<StreamHandle>(2)};
  SharedWords words(device());
  const WordWrite write{words.word(0), 1};
  EXPECT_EQ(error_of([&] {
              device().write_words(per_thread, {&write, 1});
            }),
            ErrorCode::kBadArgument);
  EXPECT_EQ(error_of([&] { device().wait_word(per_thread, words.word(0), 0); }),
            ErrorCode::kBadArgument);
}

TEST_P(DeviceSuite, WordsWorkOnTheDefaultStream) {
  SharedWords words(device());
  const WordWrite write{words.word(1), 77};
  device().write_words(default_stream(), {&write, 1});
  device().wait_word(default_stream(), words.word(1), 77);
  device().synchronize_stream(default_stream());
  EXPECT_EQ(words.load(1), 77U);
}

TEST_P(DeviceSuite, AWaitEndsByAHostsStore) {
  const StreamRef stream = new_stream();
  SharedWords words(device());
  const EventHandle event = device().create_event(0);
  device().wait_word(stream, words.word(0), 5);
  device().record_event(stream, event);
  std::this_thread::sleep_for(kAWhile);
  EXPECT_FALSE(device().query_event(0, event));
  words.store(0, 4);
  std::this_thread::sleep_for(kAWhile);
  EXPECT_FALSE(device().query_event(0, event));
  words.store(0, 6);
  EXPECT_TRUE(eventually([&] { return device().query_event(0, event); }));
  device().destroy_event(0, event);
}

TEST_P(DeviceSuite, AWaitComparesCyclically) {
  const StreamRef stream = new_stream();
  SharedWords words(device());
  const EventHandle event = device().create_event(0);
  words.store(0, ~std::uint64_t{0});
  device().wait_word(stream, words.word(0), 5);
  device().record_event(stream, event);
  std::this_thread::sleep_for(kAWhile);
  EXPECT_FALSE(device().query_event(0, event)) << "2^64-1 counted as at least 5";
  words.store(0, std::uint64_t{1} << 62);
  EXPECT_TRUE(eventually([&] { return device().query_event(0, event); }));
  // Past the wrap: 3 is at least 2^64 - 5.
  words.store(0, 3);
  device().wait_word(stream, words.word(0), ~std::uint64_t{0} - 4);
  device().synchronize_stream(stream);
  device().destroy_event(0, event);
}

TEST_P(DeviceSuite, OneStreamWaitsForAnother) {
  const StreamRef writer = new_stream();
  const StreamRef waiter = new_stream();
  SharedWords words(device());
  std::uint32_t* memory = new_memory(2 * kMiB);
  device().fill(writer, memory, 1, 1000);
  device().synchronize_stream(writer);
  for (std::uint32_t round = 1; round <= 20; ++round) {
    device().wait_word(waiter, words.word(0), round);
    kernels().write_for(writer, memory, round + 100, 1000, std::chrono::milliseconds(2));
    const WordWrite write{words.word(0), round};
    device().write_words(writer, {&write, 1});
    ASSERT_EQ(kernels().count_different(waiter, memory, round + 100, 1000), 0U) << round;
  }
}

TEST_P(DeviceSuite, AReadOnlyMappingCanBeWaitedOn) {
  const StreamRef stream = new_stream();
  const int fd = memfd_create("sealed-words", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  ASSERT_GE(fd, 0);
  ASSERT_EQ(ftruncate(fd, 4096), 0);
  auto* owners =
      static_cast<std::uint64_t*>(mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0));
  ASSERT_NE(static_cast<void*>(owners), MAP_FAILED);
  constexpr int kFutureWrite = 0x0010;  // F_SEAL_FUTURE_WRITE
  ASSERT_EQ(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | kFutureWrite | F_SEAL_SEAL), 0);
  void* mapped = mmap(nullptr, 4096, PROT_READ, MAP_SHARED, fd, 0);
  ASSERT_NE(mapped, MAP_FAILED);
  auto* readers = static_cast<std::uint64_t*>(mapped);
  device().register_host_memory(0, {mapped, 4096, fd, false});

  const WordWrite write{readers, 1};
  EXPECT_EQ(error_of([&] { device().write_words(stream, {&write, 1}); }), ErrorCode::kDeviceError);
  const EventHandle event = device().create_event(0);
  device().wait_word(stream, readers, 3);
  device().record_event(stream, event);
  std::this_thread::sleep_for(kAWhile);
  EXPECT_FALSE(device().query_event(0, event));
  std::atomic_ref(owners[0]).store(3);
  EXPECT_TRUE(eventually([&] { return device().query_event(0, event); }));

  device().destroy_event(0, event);
  device().unregister_host_memory(mapped);
  munmap(mapped, 4096);
  munmap(owners, 4096);
  close(fd);
}

TEST_P(DeviceSuite, MemoryIsRegisteredAgainAfterUnregistering) {
  const StreamRef stream = new_stream();
  for (int i = 0; i < 20; ++i) {
    SharedWords words(device());
    const WordWrite write{words.word(3), 9};
    device().write_words(stream, {&write, 1});
    device().synchronize_stream(stream);
    ASSERT_EQ(words.load(3), 9U);
  }
}

TEST_P(DeviceSuite, ProcessesOrderTheirStreamsByWords) {
  const StreamRef stream = new_stream();
  SharedWords words(device());
  std::uint32_t* memory = new_memory(2 * kMiB);
  device().fill(stream, memory, 0, 1000);
  device().synchronize_stream(stream);
  ChildProcess child = new_child();
  ASSERT_EQ(ask(child, "words " + words.path()), "done");
  const std::string address = ask(child, "open " + handle_text(device().export_memory(0, memory)));

  // The child's stream waits for this one's, writes, and answers by a word of its own.
  ASSERT_EQ(ask(child, "wait_word 0 1"), "enqueued");
  ASSERT_EQ(ask(child, "write_for " + address + " 62 1000 20"), "enqueued");
  ASSERT_EQ(ask(child, "write_word 64 1"), "enqueued");
  std::this_thread::sleep_for(kAWhile);
  EXPECT_EQ(words.load(64), 0U);
  kernels().write_for(stream, memory, 61, 1000, std::chrono::milliseconds(20));
  const WordWrite write{words.word(0), 1};
  device().write_words(stream, {&write, 1});
  device().wait_word(stream, words.word(64), 1);
  EXPECT_EQ(kernels().count_different(stream, memory, 62, 1000), 0U);
  EXPECT_EQ(ask(child, "close " + address), "done");
}

}  // namespace limbo::testing
