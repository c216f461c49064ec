// Counts, planned faults, sticky errors and captures of the simulated device.
#include <thread>

#include "tests/support/eventually.h"
#include "tests/support/sandbox.h"
#include "tests/unit/sim_support.h"

namespace limbo::testing {
namespace {

class SimFaults : public ::testing::Test {
 protected:
  std::unique_ptr<SimDevice> sim_ = make_sim();
  StreamRef default_{0, nullptr};

  // An event behind everything that `stream` has; done when the stream is.
  EventHandle mark(StreamRef stream) {
    const EventHandle event = sim_->create_event(0);
    sim_->record_event(stream, event);
    return event;
  }
};

TEST_F(SimFaults, CallsAreCountedByKind) {
  void* const data = sim_->try_allocate(0, kMiB);
  sim_->fill(default_, data, 1, 4);
  sim_->fill(default_, data, 1, 4);
  EXPECT_EQ(sim_->calls(CallKind::kAllocate), 1U);
  EXPECT_EQ(sim_->calls(CallKind::kFill), 2U);
  sim_->reset_calls();
  EXPECT_EQ(sim_->calls(CallKind::kFill), 0U);
  sim_->free(0, data);
  EXPECT_EQ(sim_->calls(CallKind::kFree), 1U);
}

TEST_F(SimFaults, TheNthCallFailsAndChangesNothing) {
  sim_->faults().add("allocate:2=fail,allocate:3=full");
  void* const first = sim_->try_allocate(0, kMiB);
  EXPECT_DEVICE_ERROR(static_cast<void>(sim_->try_allocate(0, kMiB)), "fault plan");
  EXPECT_EQ(sim_->try_allocate(0, kMiB), nullptr);
  EXPECT_EQ(sim_->balance().allocated, 1U);
  sim_->faults().add({CallKind::kFree, 1, Fault::Action::kFail, {}});
  EXPECT_DEVICE_ERROR(sim_->free(0, first), "fault plan");
  sim_->free(0, first);
}

TEST_F(SimFaults, EveryCallFailsUntilThePlanIsCleared) {
  sim_->faults().add("create_stream:*=fail");
  for (int i = 0; i < 3; ++i) {
    EXPECT_DEVICE_ERROR(static_cast<void>(sim_->create_stream(0)), "fault plan");
  }
  sim_->faults().clear();
  sim_->destroy_stream({0, sim_->create_stream(0)});
}

TEST_F(SimFaults, ASlowCallTakesItsTime) {
  sim_->faults().add("memory_info:1=slow:20");
  const auto start = std::chrono::steady_clock::now();
  static_cast<void>(sim_->memory_info(0));
  EXPECT_GE(std::chrono::steady_clock::now() - start, milliseconds(20));
}

TEST_F(SimFaults, AHangingCallComesBackWhenReleased) {
  sim_->faults().add("allocate:1=hang");
  std::atomic<bool> back{false};
  std::thread caller([&] {
    void* const data = sim_->try_allocate(0, kMiB);
    back = true;
    sim_->free(0, data);
  });
  ASSERT_TRUE(sim_->faults().wait_for_hanging(1, kPatience));
  EXPECT_FALSE(back);
  // Others go on meanwhile.
  sim_->free(0, sim_->try_allocate(0, kMiB));
  sim_->faults().release_hangs();
  caller.join();
  EXPECT_EQ(sim_->faults().hanging(), 0);
}

TEST(FaultPlan, SaysWhatIsWrongWithAText) {
  FaultPlan plan;
  for (const char* const wrong : {"allocate", "allocate:1", "nothing:1=fail", "free:0=fail",
                                  "free:1=full", "free:1=slow:", "free:x=fail",
                                  "free:1=fail,"
                                  "free"}) {
    try {
      plan.add(wrong);
      ADD_FAILURE() << wrong;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kBadArgument) << error.what();
    }
  }
  EXPECT_FALSE(plan.on_call(CallKind::kFree));  // nothing of the last one was added
}

TEST(FaultPlan, ComesFromTheEnvironment) {
  const ScopedVariable plan("LIMBO_SIM_FAULTS", "allocate:1=full");
  const auto sim = make_sim();
  EXPECT_EQ(sim->try_allocate(0, kMiB), nullptr);
  sim->free(0, sim->try_allocate(0, kMiB));
}

TEST_F(SimFaults, AnIllegalAddressLosesTheDevice) {
  void* const data = sim_->try_allocate(0, 2 * kMiB);
  EXPECT_DEVICE_ERROR(sim_->fill(default_, data, 1, kMiB), "illegal memory access");
  EXPECT_DEVICE_ERROR(static_cast<void>(sim_->try_allocate(0, 512)), "illegal memory access");
  EXPECT_DEVICE_ERROR(sim_->free(0, data), "illegal memory access");
  EXPECT_DEVICE_ERROR(sim_->synchronize_device(0), "illegal memory access");
  // Another client of the machine is untouched.
  const auto other = make_sim();
  other->free(0, other->try_allocate(0, 512));
}

TEST_F(SimFaults, AfterAStickyErrorNoWriteFollows) {
  const PlainWords words;
  sim_->register_host_memory(0, words.host_memory());
  void* const data = sim_->try_allocate(0, 2 * kMiB);
  const StreamRef kernels{0, sim_->create_stream(0)};
  const StreamRef held{0, sim_->create_stream(0)};
  const SimHold hold = sim_->hold_stream(held);
  const std::vector<WordWrite> write{{words.at(0), 1}};
  sim_->write_words(held, write);
  sim_->enqueue_kernel(kernels, milliseconds(30), data, 4096, 5);
  sim_->fill(kernels, data, 6, 1024);
  auto* const first = static_cast<std::uint32_t*>(data);
  const auto load = [&] {
    return std::atomic_ref<std::uint32_t>(*first).load(std::memory_order_relaxed);
  };
  ASSERT_TRUE(eventually([&] { return load() == 5; }));
  sim_->inject_sticky_error(0, "unspecified launch failure");
  // The running kernel came to its end, what stood behind it did not start.
  EXPECT_EQ(load(), 5U);
  EXPECT_EQ(words.load(0), 0U);
  EXPECT_DEVICE_ERROR(sim_->write_words(kernels, write), "unspecified launch failure");
  sim_->release_hold(hold);
}

TEST_F(SimFaults, ACapturedEntryRunsWhenItsGraphIsLaunched) {
  const PlainWords words;
  sim_->register_host_memory(0, words.host_memory());
  const StreamRef captured{0, sim_->create_stream(0)};
  const StreamRef joined{0, sim_->create_stream(0)};
  const EventHandle fork = sim_->create_event(0);
  sim_->begin_capture(captured, SimCaptureMode::kGlobal);
  EXPECT_TRUE(sim_->is_capturing(captured));
  EXPECT_FALSE(sim_->is_capturing(joined));
  const std::vector<WordWrite> one{{words.at(0), 1}};
  const std::vector<WordWrite> two{{words.at(1), 2}};
  sim_->write_words(captured, one);
  // Waiting for a captured event draws the other stream in.
  sim_->record_event(captured, fork);
  EXPECT_DEVICE_ERROR(static_cast<void>(sim_->query_event(0, fork)), "capturing");
  sim_->wait_event(joined, fork);
  EXPECT_TRUE(sim_->is_capturing(joined));
  sim_->write_words(joined, two);
  // Calls of the interface are made in relaxed mode: they disturb no capture.
  const EventHandle other = mark(default_);
  EXPECT_TRUE(eventually([&] { return sim_->query_event(0, other); }));

  const auto graph = sim_->end_capture(captured);
  EXPECT_FALSE(sim_->is_capturing(joined));
  sim_->wait_until_idle();
  EXPECT_EQ(words.load(0), 0U);
  sim_->launch_graph(default_, *graph);
  sim_->synchronize_stream(default_);
  EXPECT_EQ(words.load(0), 1U);
  EXPECT_EQ(words.load(1), 2U);
  EXPECT_DEVICE_ERROR(sim_->wait_event(joined, fork), "capture");
}

TEST_F(SimFaults, AGraphOfFreedMemoryIsAnIllegalAccess) {
  const StreamRef captured{0, sim_->create_stream(0)};
  void* const data = sim_->try_allocate(0, 2 * kMiB);
  sim_->begin_capture(captured, SimCaptureMode::kRelaxed);
  EXPECT_DEVICE_ERROR(sim_->destroy_stream(captured), "capturing");
  sim_->fill(captured, data, 1, 16);
  const auto graph = sim_->end_capture(captured);
  sim_->launch_graph(captured, *graph);
  EXPECT_EQ(read_words(*sim_, captured, data, 16), std::vector<std::uint32_t>(16, 1));
  sim_->free(0, data);
  EXPECT_DEVICE_ERROR(sim_->launch_graph(captured, *graph), "illegal memory access");
}

TEST_F(SimFaults, AQueryInGlobalModeLosesACapture) {
  const StreamRef captured{0, sim_->create_stream(0)};
  const EventHandle event = mark(default_);
  sim_->synchronize_stream(default_);
  EXPECT_TRUE(sim_->query_event_globally(0, event));

  sim_->begin_capture(captured, SimCaptureMode::kGlobal);
  EXPECT_DEVICE_ERROR(static_cast<void>(sim_->query_event_globally(0, event)), "capturing");
  EXPECT_DEVICE_ERROR(static_cast<void>(sim_->end_capture(captured)), "previous error");
  EXPECT_FALSE(sim_->is_capturing(captured));

  sim_->begin_capture(captured, SimCaptureMode::kRelaxed);
  EXPECT_TRUE(sim_->query_event_globally(0, event));
  EXPECT_NE(sim_->end_capture(captured), nullptr);

  sim_->begin_capture(captured, SimCaptureMode::kRelaxed);
  EXPECT_DEVICE_ERROR(sim_->synchronize_stream(captured), "capturing");
  EXPECT_DEVICE_ERROR(static_cast<void>(sim_->end_capture(captured)), "previous error");
  EXPECT_DEVICE_ERROR(static_cast<void>(sim_->end_capture(captured)), "no capture began");
}

TEST_F(SimFaults, DoesNotConfuseDevices) {
  // A machine of its own with two devices, seen the other way round.
  const Sandbox own;
  const ScopedVariable devices("LIMBO_SIM_DEVICES", "2");
  const ScopedVariable memory("LIMBO_SIM_MEMORY_MB", "64");
  const auto seeing = [](const char* visible) {
    const ScopedVariable variable("LIMBO_SIM_VISIBLE", visible);
    auto sim = make_sim();
    static_cast<void>(sim->device_count());  // read at the first use
    return sim;
  };
  const auto straight = make_sim();
  const auto crossed = seeing("1,0");
  const auto one = seeing("1");
  EXPECT_EQ(straight->device_count(), 2);
  EXPECT_EQ(crossed->device_count(), 2);
  EXPECT_EQ(one->device_count(), 1);
  EXPECT_EQ(seeing("")->device_count(), 0);
  EXPECT_THROW(seeing("2"), Error);
  EXPECT_THROW(seeing("0;1"), Error);

  EXPECT_NE(straight->uuid(0), straight->uuid(1));
  EXPECT_EQ(straight->uuid(0), crossed->uuid(1));
  EXPECT_EQ(straight->uuid(1), one->uuid(0));

  // Device 0's memory is opened on device 1 of a process that does not see device 0.
  void* const data = straight->try_allocate(0, 2 * kMiB);
  EXPECT_EQ(crossed->memory_info(1).free_bytes, 62 * kMiB);
  EXPECT_EQ(one->memory_info(0).free_bytes, 64 * kMiB);
  void* const mapped = one->open_memory(0, straight->export_memory(0, data));
  one->fill({0, nullptr}, mapped, 3, 8);
  one->synchronize_device(0);
  EXPECT_EQ(read_words(*straight, {0, nullptr}, data, 8), std::vector<std::uint32_t>(8, 3));

  // A mapping belongs to one device: another's kernel may not touch it, a sticky error stays there.
  const MemoryHandle handle = straight->export_memory(0, data);
  void* const on_first = crossed->open_memory(0, handle);
  void* const on_second = crossed->open_memory(1, handle);
  EXPECT_NE(on_first, on_second);
  EXPECT_DEVICE_ERROR(crossed->fill({1, nullptr}, on_first, 1, 8), "illegal memory access");
  EXPECT_DEVICE_ERROR(static_cast<void>(crossed->memory_info(1)), "illegal memory access");
  crossed->fill({0, nullptr}, on_first, 4, 8);
  crossed->close_memory(0, on_first);
  one->close_memory(0, mapped);
  straight->free(0, data);
}

}  // namespace
}  // namespace limbo::testing
