#include <optional>

#include "tests/bench/benchmarks.h"
#include "tests/bench/lent.h"
#include "tests/bench/process.h"

namespace limbo::bench {
namespace {

constexpr std::int64_t kReceiveBudgetNs = 10'000;
constexpr std::int64_t kReleaseBudgetNs = 3'000;

// Lends `count` blocks to the reader, which has them in its pipe then. Their owner has let go.
void lend(Reader& reader, BusyStream& stream, std::size_t count) {
  LentBlocks blocks(count, 4096, stream.ref());
  (void)blocks.share_all();
  blocks.give_all(reader);
}

void add_calls(Measurement& result, const ReaderTimes& times) {
  result.calls = times.calls;
  result.operations_with_calls = times.samples.all().size();
}

// On the owner's GPU, or on `device`.
Measurements measure_receive_on(const Scale& scale, std::optional<int> device, Measurement receive,
                                Measurement release) {
  const auto count = scale.either<std::size_t>(1'000, 50);
  BusyStream stream;
  Reader reader;
  std::uint64_t opens = 0;
  const std::size_t rounds = scale.rounds();
  for (std::size_t round = 0; round <= rounds + 1;
       ++round) {  // the first and the last do not count
    const bool with_calls = round == rounds + 1;
    lend(reader, stream, count);
    const ReaderTimes received = reader.receive(with_calls, device);
    const ReaderTimes released = reader.release(count, {}, with_calls);
    reader.settle();
    wait_until_all_is_back();
    if (with_calls) {
      add_calls(receive, received);
      add_calls(release, released);
    } else if (round > 0) {
      receive.samples.add(received.samples);
      release.samples.add(released.samples);
      opens += received.opens;
    }
  }
  if (opens != 0) receive.invalid = std::to_string(opens) + " pieces had to be mapped";
  reader.finish();
  return {receive, release};
}

}  // namespace

Measurements measure_receive(const Scale& scale) {
  return measure_receive_on(scale, {},
                            {.name = "receive-known",
                             .what = "receive of a 4 KiB block, its piece mapped before",
                             .budget_ns = kReceiveBudgetNs},
                            {.name = "release-idle",
                             .what = "release on a stream that is not waited for",
                             .budget_ns = kReleaseBudgetNs});
}

Measurements measure_receive_over_link(const Scale& scale) {
  if (device().device_count() < 2) return {};
  return measure_receive_on(
      scale, 1,
      {.name = "receive-link",
       .what = "receive on the second GPU of a block of the first",
       .budget_ns = kReceiveBudgetNs},
      {.name = "release-link", .what = "release there", .budget_ns = kReleaseBudgetNs});
}

Measurements measure_release_behind_work(const Scale& scale) {
  const auto count = scale.either<std::size_t>(5'000, 400);
  const std::chrono::milliseconds work(scale.either(600, 500));
  BusyStream stream;
  Reader reader;
  Measurement release{.name = "release-behind-work",
                      .what = std::to_string(count) + " releases on one stream, behind a kernel",
                      .budget_ns = kReleaseBudgetNs};
  Samples last;
  const std::size_t rounds = scale.either<std::size_t>(3, 1);
  for (std::size_t round = 0; round <= rounds + 1;
       ++round) {  // the first and the last do not count
    const bool with_calls = round == rounds + 1;
    lend(reader, stream, count);
    (void)reader.receive();
    const ReaderTimes times = reader.release(count, work, with_calls);
    if (!times.still_busy) release.invalid = "the kernel had ended before the last release";
    reader.settle();
    wait_until_all_is_back();
    if (with_calls) {
      add_calls(release, times);
    } else if (round > 0) {
      release.samples.add(times.samples);
      last.add(times.samples.all().back());
    }
  }
  reader.finish();
  Measurement nth{.name = "release-behind-work-last",
                  .what = "the last of them alone",
                  .samples = last,
                  .budget_ns = kReleaseBudgetNs,
                  .invalid = release.invalid};
  return {release, nth};
}

}  // namespace limbo::bench
