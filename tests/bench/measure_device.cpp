// What the device's calls cost, each alone: the part of every budget that is not ours.
#include <array>

#include "ipc/shared_memory.h"
#include "tests/bench/benchmarks.h"
#include "tests/bench/process.h"
#include "tests/bench/reader.h"

namespace limbo::bench {
namespace {

template <typename Operation>
Measurement measure(const char* name, const char* what, std::size_t count, BusyStream& stream,
                    Operation&& operation) {
  Measurement result;
  result.name = name;
  result.what = what;
  Samples warm_up;
  for (std::size_t done = 0; done < 2 * count; ++done) {
    if (done % kOperationsAtOnce == 0) stream.synchronize();
    timed(done < count ? warm_up : result.samples, operation);
  }
  stream.synchronize();
  return result;
}

}  // namespace

Measurements measure_device_calls(const Scale& scale) {
  const std::size_t count = scale.either<std::size_t>(2'000, 50);
  BusyStream stream;
  const StreamRef ref = stream.ref();
  const SharedMemory words = SharedMemory::create("limbo-bench-words", 4096, ReceiverMay::kWrite);
  device().register_host_memory(0, words.host_memory(words.size_bytes()));
  auto* word = static_cast<std::uint64_t*>(words.data());
  std::uint64_t number = 0;
  const auto write = [&](std::size_t words_written) {
    std::array<WordWrite, 3> writes{{{word, ++number}, {word + 8, number}, {word + 16, number}}};
    device().write_words(ref, std::span(writes).first(words_written));
  };
  const EventHandle event = device().create_event(0);

  Measurements all;
  const auto add = [&](const char* name, const char* what, auto&& operation) {
    all.push_back(measure(name, what, count, stream, operation));
  };
  Samples clock;
  for (std::size_t done = 0; done < 1'000; ++done) timed(clock, [] {});
  all.push_back({.name = "clock", .what = "reading the clock, which is in every time below"});
  all.back().samples = clock;
  add("device-write-1", "write_words of one word: a send", [&] { write(1); });
  add("device-write-3", "write_words of three words: a release", [&] { write(3); });
  add("device-wait", "wait_word: a receive", [&] { device().wait_word(ref, word, 1); });
  add("device-stream-id", "stream_id", [&] { (void)device().stream_id(ref); });
  add("device-capturing", "is_capturing", [&] { (void)device().is_capturing(ref); });
  add("device-memory-operations", "has_stream_memory_operations",
      [&] { (void)device().has_stream_memory_operations(0); });
  add("device-count-and-uuid", "device_count and uuid",
      [&] { (void)(device().device_count() > 0 ? device().uuid(0) : Uuid{}); });
  add("device-record-event", "record_event", [&] { device().record_event(ref, event); });

  device().destroy_event(0, event);
  device().unregister_host_memory(words.data());
  return all;
}

}  // namespace limbo::bench
