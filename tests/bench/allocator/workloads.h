// What the rows do, over any allocator: `Subject` has static functions
//   void* allocate(std::size_t size_bytes)   on the current stream
//   void free(void* data)
//   void enter_thread()                      makes a context current in a thread
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/bench/allocator/crew.h"
#include "tests/bench/allocator/measure.h"

namespace limbo::bench {

inline constexpr std::size_t kCrewSize = 16;

// One thread puts pointers in, another takes them out. Both tell each other only of whole cache lines
// of them: told of each by itself, two processors that are equally fast would wait for each other's
// lines at every pointer, which costs more than what is measured.
class Ring {
 public:
  void put(void* data) noexcept {
    while (head_ - tail_seen_ == kSlots)
      wait_for([&] {
        tail_seen_ = taken_.load(std::memory_order_acquire);
        return head_ - tail_seen_ < kSlots;
      });
    slots_[head_ % kSlots] = data;
    if (++head_ % kSlotsOfLine == 0) flush();
  }
  // What was put and not yet told of.
  void flush() noexcept { published_.store(head_, std::memory_order_release); }
  [[nodiscard]] void* take() noexcept {
    while (tail_ == head_seen_)
      wait_for([&] {
        head_seen_ = published_.load(std::memory_order_acquire);
        return tail_ < head_seen_;
      });
    void* data = slots_[tail_ % kSlots];
    if (++tail_ % kSlotsOfLine == 0) taken_.store(tail_, std::memory_order_release);
    return data;
  }

 private:
  static constexpr std::size_t kSlots = 1024;
  static constexpr std::size_t kSlotsOfLine = 64 / sizeof(void*);

  template <class Ready>
  static void wait_for(const Ready& ready) noexcept {
    for (unsigned looks = 0; !ready(); ++looks) {
      if (looks > 1000) std::this_thread::yield();
    }
  }

  alignas(64) std::size_t head_ = 0;  // the producer's
  std::size_t tail_seen_ = 0;
  alignas(64) std::atomic<std::size_t> published_{0};
  alignas(64) std::size_t tail_ = 0;  // the consumer's
  std::size_t head_seen_ = 0;
  alignas(64) std::atomic<std::size_t> taken_{0};
  alignas(64) std::array<void*, kSlots> slots_{};
};

// An allocator that does nothing: what the ring costs by itself.
struct Nothing {
  static void* allocate(std::size_t) noexcept { return &here; }
  static void free(void*) noexcept {}
  static inline char here = 0;
};

template <class Subject>
double pairs(std::size_t size_bytes, std::uint64_t count) {
  const auto start = Clock::now();
  for (std::uint64_t i = 0; i < count; ++i) Subject::free(Subject::allocate(size_bytes));
  return seconds_since(start);
}

// Blocks that one thread of a pair allocates and the other frees.
template <class Subject>
double cross_thread(Crew& crew, std::size_t pair_count, std::uint64_t count) {
  const auto rings = std::make_unique<Ring[]>(pair_count);
  return crew.run(2 * pair_count, [&](std::size_t index) {
    Ring& ring = rings[index / 2];
    if (index % 2 == 0) {
      for (std::uint64_t i = 0; i < count; ++i) ring.put(Subject::allocate(4096));
      ring.flush();
    } else {
      for (std::uint64_t i = 0; i < count; ++i) Subject::free(ring.take());
    }
  });
}

// What a training step of small layers asks of an allocator: a thread allocates activations, another
// one frees them in its turn and allocates gradients, which the first frees. `count` calls.
template <class Subject>
double training(Crew& crew, std::uint64_t count) {
  static constexpr std::array<std::size_t, 4> kActivations{8192, 512, 512, 8192};
  static constexpr std::array<std::size_t, 3> kGradients{8192, 16384, 512};
  constexpr std::size_t kForward = 600;
  constexpr std::size_t kBackward = 450;
  constexpr std::size_t kCallsOfStep = 2 * (kForward + kBackward);
  const std::uint64_t steps = count / kCallsOfStep + 1;
  const auto rings = std::make_unique<Ring[]>(2);
  const double seconds = crew.run(2, [&](std::size_t index) {
    Ring& forward = rings[0];
    Ring& backward = rings[1];
    for (std::uint64_t step = 0; step < steps; ++step) {
      if (index == 0) {
        std::array<void*, kForward> activations{};
        for (std::size_t i = 0; i < kForward; ++i) {
          activations[i] = Subject::allocate(kActivations[i % kActivations.size()]);
        }
        for (std::size_t i = kForward; i-- > 0;) forward.put(activations[i]);
        forward.flush();
        for (std::size_t i = 0; i < kBackward; ++i) Subject::free(backward.take());
      } else {
        for (std::size_t i = 0; i < kForward; ++i) {
          void* activation = forward.take();
          if (i % 4 != 0) backward.put(Subject::allocate(kGradients[i % kGradients.size()]));
          Subject::free(activation);
        }
        backward.flush();
      }
    }
  });
  return seconds * static_cast<double>(count) / static_cast<double>(steps * kCallsOfStep);
}

// A live set in which a block that is chosen at random is freed and replaced by one of another size.
// Sizes are spread evenly over their logarithms. An operation is one call: a free or an allocation.
class MixedSet {
 public:
  MixedSet(std::size_t live, std::size_t size_count, std::size_t largest_bytes, unsigned seed)
      : live_(live) {
    std::mt19937_64 random(seed);
    const double range = std::log2(static_cast<double>(largest_bytes) / 512);
    std::vector<std::size_t> sizes(size_count);
    for (std::size_t i = 0; i < size_count; ++i) {
      const double part = static_cast<double>(i) / static_cast<double>(size_count - 1);
      sizes[i] = static_cast<std::size_t>(512 * std::exp2(range * part));
    }
    for (Step& step : steps_) step = {random() % live, sizes[random() % size_count]};
    for (std::size_t& size : first_) size = sizes[random() % size_count];
  }

  template <class Subject>
  double run(std::uint64_t count) const {
    // Whatever happens, the next row finds the memory free.
    std::vector<void*> blocks(live_);
    const auto free_all = [&]() {
      for (void*& block : blocks) {
        if (block != nullptr) Subject::free(std::exchange(block, nullptr));
      }
    };
    try {
      for (std::size_t i = 0; i < live_; ++i) {
        blocks[i] = Subject::allocate(first_[i % first_.size()]);
      }
      const auto start = Clock::now();
      for (std::uint64_t i = 0; i < count / 2; ++i) {
        const Step& step = steps_[i % steps_.size()];
        Subject::free(std::exchange(blocks[step.block], nullptr));
        blocks[step.block] = Subject::allocate(step.size_bytes);
      }
      const double seconds = seconds_since(start);
      free_all();
      return seconds;
    } catch (...) {
      free_all();
      throw;
    }
  }

 private:
  struct Step {
    std::size_t block = 0;
    std::size_t size_bytes = 0;
  };
  const std::size_t live_;
  std::array<Step, 32768> steps_{};
  std::array<std::size_t, 4096> first_{};
};

template <class Subject>
std::vector<Measurement> common_rows(Crew& crew, double pair_budget_ns) {
  constexpr std::size_t kKiB = 1024;
  constexpr std::size_t kMiB = 1024 * kKiB;
  std::vector<Measurement> rows;
  const auto add = [&](std::string name, std::string what, Unit unit, std::optional<double> budget,
                       unsigned threads, std::function<double(std::uint64_t)> run) {
    rows.push_back(
        {std::move(name), std::move(what), unit, budget, std::move(run), threads, {}, {}});
  };
  const std::pair<const char*, std::size_t> sizes[] = {
      {"512B", 512}, {"4KiB", 4 * kKiB}, {"1MiB", kMiB}, {"64MiB", 64 * kMiB}};
  for (const auto& [text, size] : sizes) {
    const std::size_t size_bytes = size;
    add(std::string("pair-") + text, "one allocation and its free, one thread", Unit::kNanoseconds,
        pair_budget_ns, 1, [=](std::uint64_t count) { return pairs<Subject>(size_bytes, count); });
  }
  for (const unsigned threads : {1U, 2U, 4U, 8U, 16U}) {
    add("threads-" + std::to_string(threads), "pairs of 4 KiB by all threads together",
        Unit::kMillionsPerSecond, threads == 16 ? std::optional<double>(150) : std::nullopt,
        threads, [&crew, threads](std::uint64_t count) {
          return crew.run(threads, [&](std::size_t) { (void)pairs<Subject>(4096, count); });
        });
  }
  for (const std::size_t pair_count : {std::size_t{1}, std::size_t{8}}) {
    add("cross-" + std::to_string(pair_count),
        "4 KiB allocated by one thread and freed by another, " + std::to_string(pair_count) +
            " pair(s) of threads at once",
        Unit::kNanoseconds, pair_count == 1 ? 120 : 280, 1,
        [&crew, pair_count](std::uint64_t count) {
          return cross_thread<Subject>(crew, pair_count, count);
        });
  }
  add("ring-8", "the part of cross-8 that hands pointers over, with nothing allocated",
      Unit::kNanoseconds, std::nullopt, 1,
      [&crew](std::uint64_t count) { return cross_thread<Nothing>(crew, 8, count); });
  add("training",
      "a thread allocates 600 blocks, another frees them and allocates 450, which the first frees: "
      "a "
      "call",
      Unit::kNanoseconds, std::nullopt, 1,
      [&crew](std::uint64_t count) { return training<Subject>(crew, count); });
  for (const std::size_t size_count : {std::size_t{64}, std::size_t{65536}}) {
    const auto set = std::make_shared<MixedSet>(4096, size_count, 8 * kMiB, 1);
    add("mixed-" + std::to_string(size_count),
        "4,096 live blocks of 512 B to 8 MiB, that many sizes: one allocation or one free",
        Unit::kNanoseconds, size_count == 64 ? 180 : 400, 1,
        [set](std::uint64_t count) { return set->run<Subject>(count); });
  }
  const auto sets = std::make_shared<std::vector<MixedSet>>();
  for (unsigned seed = 0; seed < kCrewSize; ++seed) sets->emplace_back(256, 64, kMiB, seed + 2);
  add("mixed-threads-16",
      "in each of 16 threads 256 live blocks of 512 B to 1 MiB, 64 sizes: a call",
      Unit::kNanoseconds, std::nullopt, 1, [&crew, sets](std::uint64_t count) {
        std::array<double, kCrewSize> seconds{};  // without the making of the sets
        crew.run(kCrewSize,
                 [&](std::size_t index) { seconds[index] = (*sets)[index].run<Subject>(count); });
        return *std::max_element(seconds.begin(), seconds.end());
      });
  return rows;
}

}  // namespace limbo::bench
