// Host memory that runs out in the middle of a call: the call fails or does without, the allocator is
// whole afterwards, and no device memory is lost. Every allocation of host memory that a course of
// calls makes is made to fail once.
#include <functional>
#include <new>
#include <optional>
#include <thread>

#include "allocator/options.h"
#include "allocator/provider_foreign.h"
#include "tests/unit/allocator_support.h"
#include "tests/unit/short_host_memory.h"
#include "tests/unit/worker.h"

namespace limbo::testing {
namespace {

const PoolId kPool{5, 5};

// One course of calls on an allocator of its own. A step that has no host memory is left out, or
// done again where the test goes on from it.
class Course {
 public:
  Course(SimDevice& sim, StreamRef other) : user(other), device_(sim) {}

  // Without host memory it changes nothing.
  template <class Call>
  void step(const Call& call) {
    try {
      call();
    } catch (const std::bad_alloc&) {
      ++failures;
    }
    const PlentyOfHostMemory plenty;
    allocator.check_invariants();
  }
  // The same, and then it is done again.
  template <class Call>
  void insist(const Call& call) {
    const int before = failures;
    step(call);
    if (failures != before) step(call);
  }
  void allocate(std::size_t size_bytes) {
    step([&] {
      void* data = allocator.allocate(size_bytes, home);
      const PlentyOfHostMemory plenty;
      held.push_back(data);
    });
  }
  void record_all(StreamRef stream) {
    for (void* data : held) step([&] { static_cast<void>(allocator.record_stream(data, stream)); });
  }
  void free_all() {
    for (void* data : held) insist([&] { allocator.free(data); });
    const PlentyOfHostMemory plenty;
    held.clear();
  }

  const StreamRef home{0, nullptr};
  const StreamRef user;
  std::vector<void*> held;
  int failures = 0;

 private:
  RobustDevice device_;

 public:
  Allocator allocator{device_};
};

class AllocatorHostMemory : public ::testing::Test {
 protected:
  // Runs `calls` with the n-th allocation of host memory failing, for every n that comes up.
  void fail_each(const std::function<void(Course&)>& calls) {
    bool failed = true;
    int failures = 0;
    for (long n = 1; failed; ++n) {
      SCOPED_TRACE("allocation " + std::to_string(n) + " of host memory fails");
      Course course(*sim_, user_);
      {
        const ShortHostMemory short_memory(n);
        calls(course);
        failed = short_memory.failed();
      }
      failures += course.failures;
      course.allocator.empty_cache();
      course.allocator.check_invariants();
      const DeviceStats stats = course.allocator.stats(0);
      ASSERT_EQ(stats.active_bytes[kAllSizes].current, 0);
      ASSERT_EQ(stats.reserved_bytes[kAllSizes].current, 0);
      ASSERT_EQ(sim_->balance().allocated, 0U);
    }
    EXPECT_GT(failures, 0);
  }

  const OwnMachine machine_{1, 64};
  const std::unique_ptr<SimDevice> sim_ = make_sim();
  const StreamRef user_{0, sim_->create_stream(0)};
};

TEST_F(AllocatorHostMemory, BlocksAreCutAndMerged) {
  fail_each([](Course& course) {
    for (const std::size_t size_bytes : {512U, 3000U, 600U * 1024U}) course.allocate(size_bytes);
    for (const std::size_t mib : {3U, 2U, 5U, 24U}) course.allocate(mib * kMiB);
    course.free_all();
    course.step([&] { course.allocator.empty_cache(); });
    course.allocate(7 * kMiB);
    course.allocate(512);
    course.free_all();
  });
}

// A large request merges the large blocks of all caches: this thread's, and those of one that rests.
TEST_F(AllocatorHostMemory, LargeBlocksOfSeveralCachesAreMerged) {
  fail_each([](Course& course) {
    course.allocate(24 * kMiB);
    course.free_all();  // makes the cache
    course.allocate(24 * kMiB);
    std::optional<Worker> other;
    {
      const PlentyOfHostMemory plenty;
      other.emplace();
      other->run([&] {
        for (int count = 0; count < 2; ++count) {
          course.allocator.free(course.allocator.allocate(2 * kMiB, course.home));
        }
      });
    }
    course.free_all();
    course.allocate(7 * kMiB);
    course.free_all();
  });
}

// Every free goes by the heap.
TEST_F(AllocatorHostMemory, WithoutCaches) {
  set_option("thread_cache_bytes", 0);
  fail_each([](Course& course) {
    for (int count = 0; count < 70; ++count) course.allocate(512);
    course.free_all();
    for (int count = 0; count < 3; ++count) course.allocate(kMiB + 512);
    course.free_all();
  });
  set_option("thread_cache_bytes", 256 << 20);
}

TEST_F(AllocatorHostMemory, OfAThreadThatComesAndGoes) {
  bool failed = true;
  for (long n = 1; failed; ++n) {
    SCOPED_TRACE("allocation " + std::to_string(n) + " of the thread's host memory fails");
    Course course(*sim_, user_);
    std::thread([&] {
      const ShortHostMemory short_memory(n);
      for (int count = 0; count < 4; ++count) {
        course.allocate(512);
        course.allocate(2 * kMiB);
        course.free_all();
      }
      failed = short_memory.failed();
    }).join();
    course.allocator.check_invariants();
    course.allocate(512);
    course.free_all();
    course.allocator.empty_cache();
    course.allocator.check_invariants();
    ASSERT_EQ(sim_->balance().allocated, 0U);
  }
}

TEST_F(AllocatorHostMemory, BlocksWaitForOtherStreams) {
  fail_each([&](Course& course) {
    for (int count = 0; count < 3; ++count) course.allocate(4096);
    course.allocate(3 * kMiB);
    course.record_all(course.user);
    course.free_all();
    course.allocate(8192);
    course.free_all();
  });
}

TEST_F(AllocatorHostMemory, BlocksInLimbo) {
  fail_each([](Course& course) {
    course.allocate(4096);
    course.allocate(3 * kMiB);
    std::vector<Block*> pinned;
    for (void* data : course.held) {
      course.step([&] {
        const BlockView view = course.allocator.pin(data);
        const PlentyOfHostMemory plenty;
        pinned.push_back(view.block);
      });
    }
    course.record_all(course.user);
    course.free_all();
    course.step([&] { static_cast<void>(drain_let_go(course.allocator)); });
    for (Block* block : pinned) course.step([&] { course.allocator.unpin(block); });
  });
}

TEST_F(AllocatorHostMemory, OutOfMemory) {
  fail_each([](Course& course) {
    for (int count = 0; count < 2; ++count) course.allocate(4096);
    course.free_all();
    course.allocate(24 * kMiB);
    try {
      course.allocate(50 * kMiB);  // there is room where the step before was left out
    } catch (const OutOfMemory&) {
      const PlentyOfHostMemory plenty;
      course.allocator.check_invariants();
    }
    course.free_all();
  });
}

TEST_F(AllocatorHostMemory, ADriverThatKeepsTheMemory) {
  fail_each([&](Course& course) {
    course.allocate(4096);
    course.allocate(24 * kMiB);
    course.free_all();
    {
      const PlentyOfHostMemory plenty;
      sim_->faults().add("free:1=fail");
    }
    course.step([&] {
      try {
        course.allocator.empty_cache();
      } catch (const Error&) {
      }
    });
    course.allocate(24 * kMiB);
    course.free_all();
    const PlentyOfHostMemory plenty;
    sim_->faults().clear();
  });
}

TEST_F(AllocatorHostMemory, HistoryAndTrackers) {
  HistorySettings settings;
  settings.enabled = true;
  settings.max_entries = 100;
  settings.contexts = ContextLevel::kAll;
  settings.gather = [] { return CallContext(std::make_shared<int>(1)); };
  int told = 0;
  fail_each([&](Course& course) {
    course.allocate(4096);
    course.free_all();
    course.step([&] { course.allocator.set_history(settings); });
    for (int count = 0; count < 4; ++count) course.allocate(4096);
    course.free_all();
    course.step([&] { course.allocator.add_trace_tracker([&](const TraceEntry&) { ++told; }); });
    course.allocate(4096);
    course.allocate(kMiB + 1);
    course.free_all();
    course.step([&] { static_cast<void>(course.allocator.snapshot_with_traces()); });
    course.step([&] { course.allocator.set_history({}); });
    course.step([&] { course.allocator.empty_cache(); });
  });
  EXPECT_GT(told, 0);
}

// A tracker that could not be attached costs nothing: hits are hits as before.
TEST_F(AllocatorHostMemory, ATrackerIsAttachedOrNot) {
  bool failed = true;
  for (long n = 1; failed; ++n) {
    SCOPED_TRACE("allocation " + std::to_string(n) + " of host memory fails");
    Course course(*sim_, user_);
    {
      const ShortHostMemory short_memory(n);
      course.step([&] { course.allocator.add_trace_tracker([](const TraceEntry&) {}); });
      failed = short_memory.failed();
    }
    course.allocate(4096);
    course.free_all();
    course.allocate(4096);
    course.free_all();
    // What a cache holds was not merged with the rest of its segment.
    const bool cached = course.allocator.snapshot(0)[0].blocks.size() > 1;
    EXPECT_EQ(cached, course.failures != 0);
    course.allocator.empty_cache();
  }
}

TEST_F(AllocatorHostMemory, PoolsAndRoutes) {
  fail_each([](Course& course) {
    Allocator& allocator = course.allocator;
    course.insist([&] { allocator.retain_pool(0, kPool); });
    course.insist(
        [&] { allocator.begin_allocate_to_pool(0, kPool, [](StreamHandle) { return true; }); });
    course.allocate(4096);
    course.allocate(3 * kMiB);
    course.record_all(course.user);
    course.free_all();
    course.allocate(8192);
    course.step([&] { static_cast<void>(allocator.pool_live_allocations(0, kPool)); });
    course.free_all();
    course.insist([&] { allocator.end_allocate_to_pool(0, kPool); });
    course.insist([&] { allocator.release_pool(0, kPool); });
    course.insist([&] { allocator.release_pool(0, kPool); });
    course.step([&] { allocator.empty_cache(0, kPool); });
  });
}

TEST_F(AllocatorHostMemory, MemoryOfAPoolsOwnAllocator) {
  fail_each([&](Course& course) {
    Allocator& allocator = course.allocator;
    // Never aligned, so that every piece is noted.
    const auto provider = [&] {
      const PlentyOfHostMemory plenty;
      return std::make_shared<ProviderForeign>(
          [&](int device, std::size_t size_bytes) -> void* {
            const PlentyOfHostMemory none_fails;
            auto* memory = static_cast<std::byte*>(sim_->try_allocate(device, size_bytes + kMiB));
            return memory == nullptr ? nullptr : memory + 512;
          },
          [&](int device, void* memory) {
            const PlentyOfHostMemory none_fails;
            sim_->free(device, static_cast<std::byte*>(memory) - 512);
          });
    }();
    course.insist([&] { allocator.retain_pool(0, kPool, provider); });
    course.insist(
        [&] { allocator.begin_allocate_to_pool(0, kPool, [](StreamHandle) { return true; }); });
    course.allocate(4096);
    course.allocate(3 * kMiB);
    course.free_all();
    course.insist([&] { allocator.end_allocate_to_pool(0, kPool); });
    course.insist([&] { allocator.release_pool(0, kPool); });
    course.insist([&] { allocator.release_pool(0, kPool); });
  });
}

TEST_F(AllocatorHostMemory, GoingBackToACheckpoint) {
  fail_each([](Course& course) {
    Allocator& allocator = course.allocator;
    std::shared_ptr<const Checkpoint> checkpoint;
    course.insist(
        [&] { allocator.begin_allocate_to_pool(0, kPool, [](StreamHandle) { return true; }); });
    for (int count = 0; count < 80; ++count) course.allocate(512);
    course.insist([&] { allocator.end_allocate_to_pool(0, kPool); });
    course.insist([&] { checkpoint = allocator.take_checkpoint(0, kPool); });
    course.free_all();  // of the layout's nodes none is in use any more
    course.insist(
        [&] { allocator.begin_allocate_to_pool(0, kPool, [](StreamHandle) { return true; }); });
    for (int count = 0; count < 3; ++count) course.allocate(700U * 1024U);
    course.insist([&] { allocator.end_allocate_to_pool(0, kPool); });
    course.insist([&] {
      CheckpointDelta delta = allocator.restore_checkpoint(*checkpoint);
      const PlentyOfHostMemory plenty;
      course.held = delta.allocated;
    });
    course.free_all();
    course.insist([&] { allocator.release_pool(0, kPool); });
    course.insist([&] { allocator.release_pool(0, kPool); });
  });
}

}  // namespace
}  // namespace limbo::testing
