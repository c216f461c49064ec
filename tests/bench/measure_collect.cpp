#include <memory>
#include <stdexcept>

#include "tests/bench/benchmarks.h"
#include "tests/bench/lent.h"
#include "tests/bench/process.h"
#include "tests/support/eventually.h"

namespace limbo::bench {
namespace {

constexpr std::int64_t kCollectBudgetNs = 1'000;
constexpr std::size_t kReaders = 2;  // one can hold 65,536 of a sender's messages
constexpr int kCollectsPerSample = 500;

void measure_unchanged(Measurement& result, const Scale& scale) {
  const std::size_t samples = scale.either<std::size_t>(200, 10);
  for (std::size_t sample = 0; sample <= samples; ++sample) {
    const auto start = Clock::now();
    for (int call = 0; call < kCollectsPerSample; ++call) (void)sharing().collect();
    if (sample > 0) result.samples.add(ns_since(start) / kCollectsPerSample);
  }
}

// One block comes back for each sample: where the sender's own worker was first, there is none.
void measure_changed(Measurement& result, Reader& reader, const Scale& scale) {
  for (std::size_t round = 0; round < scale.either<std::size_t>(60, 5); ++round) {
    (void)reader.release(1, {});
    reader.settle();
    Samples sample;
    if (timed(sample, [] { return sharing().collect(); })) result.samples.add(sample);
  }
}

std::string in_limbo(std::size_t count) {
  return " with " + std::to_string(count) + " blocks in limbo";
}

Measurements with_blocks_in_limbo(std::size_t count, const Scale& scale) {
  BusyStream stream;
  Reader readers[kReaders];
  for (Reader& reader : readers) {
    LentBlocks blocks(count / kReaders, 512, stream.ref());
    (void)blocks.share_all();
    blocks.give_all(reader);
    (void)reader.receive();
  }
  const bool all_in_limbo = testing::eventually([&] {
    (void)sharing().collect();
    return sharing().stats().held_claims == count &&
           allocator().stats(0).limbo_blocks == static_cast<std::int64_t>(count);
  });
  if (!all_in_limbo) throw std::runtime_error("the lent blocks are not in limbo");

  Measurement unchanged{.name = "collect-" + std::to_string(count),
                        .what = "collect, nothing changed," + in_limbo(count),
                        .budget_ns = kCollectBudgetNs};
  measure_unchanged(unchanged, scale);
  Measurement changed{.name = "collect-" + std::to_string(count) + "-changed",
                      .what = "collect that brings one block back," + in_limbo(count)};
  measure_changed(changed, readers[0], scale);

  for (Reader& reader : readers) {
    (void)reader.release(count, {});
    reader.settle();
    reader.finish();
  }
  wait_until_all_is_back();
  return {unchanged, changed};
}

}  // namespace

Measurements measure_collect(const Scale& scale) {
  Measurements all = with_blocks_in_limbo(scale.either<std::size_t>(8'000, 200), scale);
  for (Measurement& more : with_blocks_in_limbo(scale.either<std::size_t>(100'000, 1'000), scale)) {
    all.push_back(std::move(more));
  }
  return all;
}

}  // namespace limbo::bench
