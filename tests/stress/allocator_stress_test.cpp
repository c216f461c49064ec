// Eight threads, a million random operations, against a model that knows the right answer.
#include <gtest/gtest.h>

#include <cstdio>
#include <map>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "allocator/error.h"
#include "allocator/gate.h"
#include "tests/stress/allocator_model.h"
#include "tests/stress/lockless_tracker.h"
#include "tests/unit/allocator_support.h"

namespace limbo::testing {
namespace {

#if defined(__SANITIZE_ADDRESS__)
constexpr bool kAddressSanitizer = true;
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
constexpr bool kAddressSanitizer = true;
#else
constexpr bool kAddressSanitizer = false;
#endif
#else
constexpr bool kAddressSanitizer = false;
#endif
constexpr bool kSanitized = kAddressSanitizer || kThreadSanitizer;

constexpr std::uint64_t kSeed = 20'261'129;
constexpr int kThreads = 8;
constexpr int kRounds = 4;  // threads end and new ones begin between them
constexpr int kOperations = kSanitized ? 100'000 : 1'000'000;

// What all threads share.
struct World {
  World(SimDevice& on_device, Allocator& with, bool everything = false)
      : device(on_device), allocator(with), with_pools_and_history(everything) {
    for (int index = 0; index < device.device_count(); ++index) {
      homes.push_back({index, nullptr});
      homes.push_back({index, device.create_stream(index)});
      users.push_back({index, device.create_stream(index)});
    }
  }

  SimDevice& device;
  Allocator& allocator;
  const bool with_pools_and_history;
  Shadow shadow;
  std::vector<StreamRef> homes;
  std::vector<StreamRef> users;
  std::array<std::atomic<Live*>, 64> exchange{};  // blocks on their way to another thread
  std::atomic<std::uint32_t> next_token{1};
  std::atomic<std::int64_t> allocations{0};
  std::atomic<std::int64_t> out_of_memory{0};
  std::atomic<std::uint64_t> pools{0};  // numbers that were given away
};

// One of the model's pins on a block in limbo ends; the last one ends the block.
void drop_pin(World& world, Live* live) {
  Block* block = live->block;
  if (live->pins.fetch_sub(1) == 1) {
    world.shadow.end(*live);
    delete live;
  }
  world.allocator.unpin(block);
}

void drain(World& world) {
  for (Block* block = world.allocator.take_let_go(); block != nullptr;) {
    Block* next = Allocator::next_let_go(block);
    drop_pin(world, static_cast<Live*>(Allocator::lender_note(block)));
    block = next;
  }
}

class Worker {
 public:
  Worker(World& world, std::uint64_t seed) : world_(world), random_(seed) {}

  void run(int operations) {
    for (int count = 0; count < operations; ++count) step();
  }

  // Ends everything that this thread holds.
  void finish() {
    while (!live_.empty()) free_block(take(live_));
    while (!pinned_.empty()) drop_pin(world_, take(pinned_));
    leave_pool();
    if (pool_.second != 0) world_.allocator.release_pool(pool_device_, pool_);
  }

 private:
  std::size_t below(std::size_t limit) { return random_() % limit; }

  template <class Holder>
  typename Holder::value_type take(Holder& from) {
    std::swap(from[below(from.size())], from.back());
    const auto taken = from.back();
    from.pop_back();
    return taken;
  }

  Live* any() { return live_.empty() ? nullptr : live_[below(live_.size())]; }

  void step() {
    if (world_.with_pools_and_history && below(200) == 0) return change_the_way();
    const std::size_t dice = below(1000);
    if (dice < 440) {
      allocate_block();
    } else if (dice < 780) {
      if (!live_.empty()) free_block(take(live_));
    } else if (dice < 880) {
      swap_with_another_thread();
    } else if (dice < 910) {
      use_on_another_stream(any());
    } else if (dice < 940) {
      pin_and_let_go();
    } else if (dice < 965) {
      if (!pinned_.empty()) drop_pin(world_, take(pinned_));
    } else if (dice < 970) {
      drain(world_);
    } else if (dice < 985) {
      free_wrongly(any());
    } else if (dice < 999) {
      look(any());
    } else {
      rare();
    }
  }

  std::size_t random_size() {
    const std::size_t dice = below(100);
    if (dice < 50) return 1 + below(4) * 512;
    if (dice < 85) return 1 + below(16 << 10);
    if (dice < 98) return 1 + below(1 << 20);
    return 1 + below(12 << 20);
  }

  void allocate_block() {
    if (live_.size() >= 150 || live_bytes_ > (24U << 20)) return;
    auto live = std::make_unique<Live>();
    live->asked_bytes = random_size();
    live->home = world_.homes[below(world_.homes.size())];
    try {
      live->data =
          static_cast<std::byte*>(world_.allocator.allocate(live->asked_bytes, live->home));
    } catch (const OutOfMemory&) {
      ++world_.out_of_memory;
      while (live_.size() > 20) free_block(take(live_));
      return;
    }
    ++world_.allocations;
    const auto view = world_.allocator.find(live->data);
    ASSERT_TRUE(view.has_value());
    ASSERT_EQ(view->data, live->data);
    ASSERT_EQ(view->requested_bytes, live->asked_bytes);
    ASSERT_EQ(view->stream, live->home);
    ASSERT_GE(view->size_bytes, live->asked_bytes);
    live->size_bytes = view->size_bytes;
    live->is_private = routed_ && live->home.device == pool_device_;
    live->token = world_.next_token++;
    world_.shadow.begin(*live);
    live_bytes_ += live->size_bytes;
    live_.push_back(live.release());
  }

  void free_block(Live* live) {
    live_bytes_ -= std::min(live_bytes_, live->size_bytes);
    std::byte* data = live->data;
    if (live->pins.load() == 0) {
      world_.shadow.end(*live);
      delete live;
    } else {
      live->pins.fetch_add(1);  // the let-go list's
      Allocator::lender_note(live->block) = live;
    }
    world_.allocator.free(data);
  }

  void swap_with_another_thread() {
    if (live_.empty()) return;
    Live* mine = take(live_);
    live_bytes_ -= std::min(live_bytes_, mine->size_bytes);
    Live* theirs = world_.exchange[below(world_.exchange.size())].exchange(mine);
    if (theirs == nullptr) return;
    live_.push_back(theirs);
    live_bytes_ += theirs->size_bytes;
  }

  // The stream's late write must not reach the block's next owner.
  void use_on_another_stream(Live* live) {
    if (live == nullptr) return;
    const StreamRef user = world_.users[below(world_.users.size())];
    ASSERT_TRUE(world_.allocator.record_stream(live->data + below(live->size_bytes), user));
    if (kThreadSanitizer || user.device != live->home.device || below(4) != 0) return;
    live->overwritten = true;
    world_.device.fill(user, live->data + Shadow::kFreeWordsOffset, 0xdddd'dddd, 4);
  }

  // Pins a block and, half of the time, frees it at once: limbo.
  void pin_and_let_go() {
    if (live_.empty() || pinned_.size() >= 50) return;
    Live* live = take(live_);
    if (live->is_private) {
      EXPECT_ERROR(static_cast<void>(world_.allocator.pin(live->data)), kNotLendable);
      live_.push_back(live);
      return;
    }
    const BlockView view = world_.allocator.pin(live->data + below(live->size_bytes));
    ASSERT_EQ(view.data, live->data);
    ASSERT_EQ(view.size_bytes, live->size_bytes);
    live->block = view.block;
    live->pins.fetch_add(1);
    if (below(4) == 0) {
      world_.allocator.pin_again(view.block);
      live->pins.fetch_add(1);
      pinned_.push_back(live);
    }
    if (below(8) == 0) {  // unpinned while it is allocated
      live->pins.fetch_sub(1);
      world_.allocator.unpin(view.block);
      if (live->pins.load() == 0) {
        live_.push_back(live);
        return;
      }
    } else {
      pinned_.push_back(live);
    }
    std::byte* data = live->data;
    free_block(live);
    // In limbo, and this thread holds a pin: the answer is certain.
    EXPECT_ERROR(world_.allocator.free(data), kDoubleFree);
    EXPECT_ERROR(static_cast<void>(world_.allocator.pin(data)), kNotLendable);
  }

  void free_wrongly(Live* live) {
    int on_the_stack = 0;
    EXPECT_ERROR(world_.allocator.free(&on_the_stack), kForeignFree);
    if (live == nullptr) return;
    const std::size_t offset = 1 + below(live->size_bytes - 1);
    EXPECT_ERROR(world_.allocator.free(live->data + offset), kInteriorFree);
  }

  void look(Live* live) {
    if (live == nullptr) return;
    const auto view = world_.allocator.find(live->data + below(live->size_bytes));
    ASSERT_TRUE(view.has_value());
    EXPECT_EQ(view->data, live->data);
    EXPECT_EQ(view->size_bytes, live->size_bytes);
  }

  void rare() {
    switch (below(12)) {
      case 0:
        world_.allocator.empty_cache(static_cast<int>(below(world_.homes.size() / 2)));
        break;
      case 1:
        world_.allocator.check_invariants();
        break;
      case 2:
        static_cast<void>(world_.allocator.snapshot());
        break;
      default:
        EXPECT_GE(world_.allocator.stats(0).allocated_bytes[kAllSizes].current, 0);
    }
  }

  // This thread's allocations on one device go to a pool of its own, or not any more; a history is
  // recorded, or not any more; free memory is cut in another way.
  void change_the_way() {
    switch (below(5)) {
      case 0:
      case 1:
        return routed_ ? leave_pool() : enter_pool();
      case 2: {
        HistorySettings settings;
        settings.enabled = below(2) == 0;
        settings.max_entries = 1000;
        settings.contexts = static_cast<ContextLevel>(below(4));
        settings.gather = [] { return CallContext(std::make_shared<int>(1)); };
        return world_.allocator.set_history(settings);
      }
      case 3: {
        AllocationPolicy policy;
        if (below(2) == 0) policy.max_split_size_bytes = std::size_t{24} << 20;
        if (below(2) == 0) policy.garbage_collection_threshold = 0.01;
        return world_.allocator.set_policy(policy);
      }
      default: {
        const MemorySnapshot snapshot = world_.allocator.snapshot_with_traces();
        for (const auto& entries : snapshot.traces) ASSERT_LE(entries.size(), 1000U);
      }
    }
  }

  void enter_pool() {
    if (pool_.second == 0) {
      pool_ = {0, ++world_.pools};
      pool_device_ = static_cast<int>(below(world_.homes.size() / 2));
      world_.allocator.retain_pool(pool_device_, pool_);
    }
    const std::thread::id me = std::this_thread::get_id();
    world_.allocator.begin_allocate_to_pool(
        pool_device_, pool_, [me](StreamHandle) { return std::this_thread::get_id() == me; });
    routed_ = true;
  }

  void leave_pool() {
    if (!routed_) return;
    world_.allocator.end_allocate_to_pool(pool_device_, pool_);
    world_.allocator.release_pool(pool_device_, pool_);
    routed_ = false;
  }

  World& world_;
  std::mt19937_64 random_;
  PoolId pool_;  // {0, 0}: none yet
  int pool_device_ = 0;
  bool routed_ = false;
  std::vector<Live*> live_;
  std::size_t live_bytes_ = 0;
  std::vector<Live*> pinned_;
};

void run_rounds(World& world, int operations) {
  std::printf("seed %llu, %d threads, %d operations\n", static_cast<unsigned long long>(kSeed),
              kThreads, operations);
  for (int round = 0; round < kRounds; ++round) {
    std::vector<std::thread> threads;
    for (int index = 0; index < kThreads; ++index) {
      const std::uint64_t seed = kSeed + static_cast<std::uint64_t>(round * kThreads + index);
      threads.emplace_back([&world, seed, operations] {
        Worker worker(world, seed);
        worker.run(operations / kThreads / kRounds);
        worker.finish();
      });
    }
    for (std::thread& thread : threads) thread.join();
    world.allocator.check_invariants();
    ASSERT_EQ(world.shadow.errors(), 0);
  }
}

// Nothing is left over: in the model, in the allocator, with the device.
void expect_balance(World& world) {
  for (auto& slot : world.exchange) {
    Live* live = slot.exchange(nullptr);
    if (live == nullptr) continue;
    std::byte* data = live->data;
    world.shadow.end(*live);
    delete live;
    world.allocator.free(data);
  }
  drain(world);
  EXPECT_EQ(world.shadow.owned(), 0U);
  std::int64_t allocations = 0;
  for (int device = 0; device < world.device.device_count(); ++device) {
    const Stat counted = world.allocator.stats(device).allocation[kAllSizes];
    EXPECT_EQ(counted.current, 0);
    EXPECT_EQ(counted.allocated, counted.freed);
    allocations += counted.allocated;
  }
  EXPECT_EQ(allocations, world.allocations);
  std::printf("%lld allocations, %lld out of memory\n", static_cast<long long>(allocations),
              static_cast<long long>(world.out_of_memory));
}

class AllocatorStress : public AllocatorTest {
 protected:
  AllocatorStress() : AllocatorTest(4, 2048) {}

  void limit_all(std::size_t limit_bytes) {
    for (int device = 0; device < sim_->device_count(); ++device) {
      allocator_.set_limit_bytes(device, limit_bytes);
    }
  }
};

TEST_F(AllocatorStress, WithRoom) {
  World world(*sim_, allocator_);
  run_rounds(world, kOperations);
  expect_balance(world);
  EXPECT_EQ(world.out_of_memory, 0);
}

// Some threads' blocks are of private pools, the caches are used or not, policies change.
TEST_F(AllocatorStress, WithPoolsAndHistory) {
  World world(*sim_, allocator_, true);
  run_rounds(world, kOperations / 4);
  expect_balance(world);
  allocator_.set_history({});
}

class AllocatorStressTracked : public AllocatorStress {
 protected:
  LocklessTracker tracker_;
};

TEST_F(AllocatorStressTracked, WithATracker) {
  allocator_.add_trace_tracker([this](const TraceEntry& entry) { tracker_(entry); });
  World world(*sim_, allocator_, true);
  limit_all(60 * kMiB);
  run_rounds(world, kOperations / 8);
  expect_balance(world);
  allocator_.set_history({});
  allocator_.empty_cache();
  EXPECT_EQ(tracker_.left(), 0U);
  EXPECT_GE(tracker_.heard(), 3 * static_cast<std::size_t>(world.allocations));
}

// The limit is below what the threads want: memory goes back and forth, and some requests fail.
TEST_F(AllocatorStress, AtTheLimit) {
  World world(*sim_, allocator_);
  limit_all(40 * kMiB);
  run_rounds(world, kOperations / 4);
  expect_balance(world);
}

}  // namespace
}  // namespace limbo::testing
