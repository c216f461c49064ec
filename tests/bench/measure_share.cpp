#include "tests/bench/benchmarks.h"
#include "tests/bench/lent.h"
#include "tests/bench/process.h"

namespace limbo::bench {
namespace {

constexpr std::int64_t kShareBudgetNs = 3'000;
constexpr std::int64_t kSendBudgetNs = 3'000;

// While a kernel runs a stream takes 1,021 entries.
constexpr std::size_t kSendsBehindWork = 700;

// One round: `count` blocks are shared, taken back and freed.
Samples share_round(BusyStream& stream, std::size_t count, CallTimes* calls = nullptr) {
  LentBlocks blocks(count, 4096, stream.ref());
  Samples samples = blocks.share_all(calls);
  blocks.withdraw_all();
  return samples;
}

void measure_rounds(Measurement& result, BusyStream& stream, std::size_t count,
                    std::size_t rounds) {
  (void)share_round(stream, count);
  for (std::size_t round = 0; round < rounds; ++round) {
    result.samples.add(share_round(stream, count));
  }
  result.operations_with_calls = share_round(stream, count, &result.calls).all().size();
}

}  // namespace

Measurements measure_share(const Scale& scale) {
  BusyStream stream;
  Measurement result{.name = "share-known",
                     .what = "share of a 4 KiB block, its piece lent before",
                     .budget_ns = kShareBudgetNs};
  measure_rounds(result, stream, scale.either<std::size_t>(1'000, 50), scale.rounds());
  wait_until_all_is_back();
  return {result};
}

Measurements measure_send_behind_work(const Scale& scale) {
  const auto unreleased = scale.either<std::size_t>(10'000, 200);
  const auto sends = scale.either<std::size_t>(kSendsBehindWork, 50);
  const std::string with = " with " + std::to_string(unreleased) + " earlier sends unreleased";
  BusyStream stream;
  Reader reader;
  LentBlocks earlier(unreleased, 512, stream.ref());
  (void)earlier.share_all();
  earlier.give_all(reader);
  (void)reader.receive();

  Measurement idle{.name = "send-unreleased", .what = "share" + with, .budget_ns = kSendBudgetNs};
  measure_rounds(idle, stream, sends, scale.rounds());

  Measurement behind{.name = "send-behind-work",
                     .what = "share" + with + ", behind a kernel",
                     .budget_ns = kSendBudgetNs};
  const std::chrono::milliseconds work(scale.either(300, 500));
  for (std::size_t round = 0; round <= scale.rounds(); ++round) {
    LentBlocks blocks(sends, 4096, stream.ref());
    stream.keep_busy(work);
    const Samples samples = blocks.share_all(nullptr, true);
    if (!stream.busy()) behind.invalid = "the kernel had ended before the last send";
    stream.synchronize();
    blocks.withdraw_all();
    if (round > 0) behind.samples.add(samples);
  }

  earlier.free_all();
  (void)reader.release(unreleased, {});
  reader.settle();
  reader.finish();
  wait_until_all_is_back();
  return {idle, behind};
}

}  // namespace limbo::bench
