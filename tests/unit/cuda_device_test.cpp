// How the CUDA device calls the driver: against a stand-in for libcuda that checks it. What a GPU
// does with the calls is tests/gpu's subject.
#ifdef LIMBO_FAKE_DRIVER_DIR

#include <gtest/gtest.h>

#include <array>
#include <functional>
#include <sstream>
#include <thread>
#include <utility>

#include "allocator/device/device.h"
#include "allocator/device/memory_users.h"
#include "allocator/error.h"
#include "tests/support/child_process.h"
#include "tests/support/cuda_driver.h"
#include "tests/unit/short_host_memory.h"

namespace limbo::testing {
namespace {

int fake(const char* name) {
  return driver_function<int (*)()>(name)();
}

// "depth 0 mode 0": the thread is as it was before.
std::string thread_state() {
  return "depth " + std::to_string(fake("fakeCudaDepth")) + " mode " +
         std::to_string(fake("fakeCudaCaptureMode"));
}

using Call = std::pair<const char*, std::function<void()>>;

// One call of each kind; the words are registered.
std::vector<Call> all_calls(Device& device, std::uint64_t* words) {
  static int memory[4];
  const StreamRef stream{0, reinterpret_cast<StreamHandle>(0x1000)};
  const auto event = reinterpret_cast<EventHandle>(0x2000);
  void* base = &memory;
  return {
      {"cuMemGetInfo", [&device] { (void)device.memory_info(0); }},
      {"cuMemAlloc", [&device] { (void)device.try_allocate(0, 512); }},
      {"cuMemFree", [&device, base] { device.free(0, base); }},
      {"cuMemGetAddressRange", [&device, base] { (void)device.driver_allocation(0, base); }},
      {"cuIpcGetMemHandle", [&device, base] { (void)device.export_memory(0, base); }},
      {"cuIpcOpenMemHandle", [&device] { (void)device.open_memory(0, MemoryHandle{}); }},
      {"cuIpcCloseMemHandle", [&device, base] { device.close_memory(0, base); }},
      {"cuStreamGetId", [&device, stream] { (void)device.stream_id(stream); }},
      {"cuStreamCreate", [&device] { (void)device.create_stream(0); }},
      {"cuStreamDestroy", [&device, stream] { device.destroy_stream(stream); }},
      {"cuStreamIsCapturing", [&device, stream] { (void)device.is_capturing(stream); }},
      {"cuStreamSynchronize", [&device, stream] { device.synchronize_stream(stream); }},
      {"cuMemAlloc", [&device] { device.synchronize_device(0); }},
      {"cuEventCreate", [&device] { (void)device.create_event(0); }},
      {"cuEventDestroy", [&device, event] { device.destroy_event(0, event); }},
      {"cuEventRecord", [&device, stream, event] { device.record_event(stream, event); }},
      {"cuEventQuery", [&device, event] { (void)device.query_event(0, event); }},
      {"cuStreamWaitEvent", [&device, stream, event] { device.wait_event(stream, event); }},
      {"cuStreamBatchMemOp",
       [&device, stream, words] {
         const std::array<WordWrite, 2> writes{{{words, 1}, {words + 1, 2}}};
         device.write_words(stream, writes);
       }},
      {"cuStreamWaitValue64", [&device, stream, words] { device.wait_word(stream, words, 1); }},
      {"cuMemsetD32Async", [&device, stream, base] { device.fill(stream, base, 1, 1); }},
      {"cuMemcpyAsync", [&device, stream, base] { device.copy(stream, base, base, 4); }},
  };
}

// Makes every call and tells of those that did not end as `failing` says (else: in success).
LIMBO_CHILD_ROLE(call_fake_driver) {
  alignas(4096) static std::uint64_t words[512];
  const std::unique_ptr<Device> device = make_cuda_device();
  device->register_host_memory(0, {words, sizeof(words), -1, true});
  // Asks for the words' address while nothing fails.
  device->wait_word({0, nullptr}, words, 0);
  const bool failing = child.argument(0) == "failing";
  if (failing) setenv("FAKE_CUDA_FAIL", "all", 1);
  for (const auto& [name, call] : all_calls(*device, words)) {
    std::string outcome = "success";
    try {
      call();
    } catch (const Error& error) {
      outcome = error.what();
    }
    const std::string expected =
        failing ? std::string(name) + ": CUDA_ERROR_OF_THE_FAKE (it was told to fail)." : "success";
    if (outcome != expected) child.send(std::string(name) + " ended in: " + outcome);
    if (thread_state() != "depth 0 mode 0") child.send(std::string(name) + ": " + thread_state());
  }
  child.send("retained " + std::to_string(fake("fakeCudaRetains")));
  return 0;
}

LIMBO_CHILD_ROLE(call_with_own_context) {
  const std::unique_ptr<Device> device = make_cuda_device();
  const CurrentContext current(0);
  const int pushes = fake("fakeCudaPushes");
  (void)device->memory_info(0);
  child.send("pushed " + std::to_string(fake("fakeCudaPushes") - pushes));
  (void)device->memory_info(1);
  child.send("pushed " + std::to_string(fake("fakeCudaPushes") - pushes));
  child.send(thread_state());
  return 0;
}

LIMBO_CHILD_ROLE(register_on_second_device) {
  alignas(4096) static std::uint64_t words[512];
  const std::unique_ptr<Device> device = make_cuda_device();
  device->register_host_memory(1, {words, sizeof(words), -1, true});
  device->wait_word({1, nullptr}, words, 0);
  device->unregister_host_memory(words);
  child.send("contexts " + std::to_string(fake("fakeCudaContexts")));
  return 0;
}

// Registers memory while each of the host's allocations fails in turn, and then with enough.
LIMBO_CHILD_ROLE(register_with_little_host_memory) {
  alignas(4096) static std::uint64_t words[512];
  const std::unique_ptr<Device> device = make_cuda_device();
  (void)device->memory_info(0);
  int failures = 0;
  for (bool done = false; !done; failures += done ? 0 : 1) {
    bool is_registered = false;
    {
      const ShortHostMemory memory(failures + 1);
      try {
        device->register_host_memory(0, {words, sizeof(words), -1, true});
        is_registered = true;
      } catch (const std::bad_alloc&) {
      }
      done = !memory.failed();
    }
    try {
      if (!is_registered) device->register_host_memory(0, {words, sizeof(words), -1, true});
      device->wait_word({0, nullptr}, words, 1);
      device->unregister_host_memory(words);
    } catch (const Error& error) {
      child.send("behind failure " + std::to_string(failures + 1) + ": " + error.what());
      return 0;
    }
  }
  child.send(failures >= 2 ? "works" : "nothing has failed");
  return 0;
}

// Says whether the second GPU counts as lost: at once, and when its calls succeed again. Limbo has not
// used it; "others": somebody else has.
LIMBO_CHILD_ROLE(meet_a_loss_at_the_door) {
  const std::unique_ptr<Device> device = make_cuda_device();
  (void)device->memory_info(0);
  if (child.argument(0) == "others") {
    const CurrentContext theirs(1);
  }
  setenv(child.argument(1).c_str(), child.argument(2).c_str(), 1);
  std::string said = device->is_lost(1) ? "lost" : "well";
  unsetenv(child.argument(1).c_str());
  if (said == "lost") said += device->is_lost(1) ? " for good" : ", then well";
  child.send(said);
  child.send(thread_state());
  return 0;
}

// Says what becomes of an object that a graph is to keep, and of the device then.
LIMBO_CHILD_ROLE(keep_in_graph) {
  const std::unique_ptr<Device> device = make_cuda_device();
  auto object = std::make_shared<int>(0);
  const std::weak_ptr<int> watched = object;
  std::string outcome = "error";
  try {
    outcome = device->keep_while_graph_lives({0, nullptr}, std::move(object)) ? "kept" : "not kept";
  } catch (const Error&) {
    object.reset();
  }
  child.send(outcome + (watched.expired() ? ", gone" : ", alive"));
  (void)fake("fakeCudaDestroyGraph");
  child.send(watched.expired() ? "gone" : "alive");
  child.send(device->is_lost(0) ? "lost" : "well");
  child.send(thread_state());
  return 0;
}

LIMBO_CHILD_ROLE(run_out_of_memory) {
  const std::unique_ptr<Device> device = make_cuda_device();
  child.send(device->try_allocate(0, std::size_t{1} << 41) == nullptr ? "null" : "memory");
  return 0;
}

LIMBO_CHILD_ROLE(look_for_devices) {
  const std::unique_ptr<Device> device = make_cuda_device();
  child.send(std::to_string(device->device_count()));
  try {
    (void)device->memory_info(0);
  } catch (const Error& error) {
    child.send(error.what());
  }
  return 0;
}

ChildOptions with_devices(int count) {
  return {
      {{"LD_LIBRARY_PATH", LIMBO_FAKE_DRIVER_DIR}, {"FAKE_CUDA_DEVICES", std::to_string(count)}}};
}

TEST(CudaDevice, CallsTheDriverAsPromised) {
  ChildProcess child("call_fake_driver", {"well"}, with_devices(1));
  child.expect("retained 1");
  child.finish();
}

TEST(CudaDevice, NamesTheCallThatFailed) {
  ChildProcess child("call_fake_driver", {"failing"}, with_devices(1));
  child.expect("retained 1");
  child.finish();
}

TEST(CudaDevice, TakesTheThreadsContextWhereItIsTheRightOne) {
  ChildProcess child("call_with_own_context", {}, with_devices(2));
  child.expect("pushed 0");
  child.expect("pushed 1");
  child.expect("depth 1 mode 0");
  child.finish();
}

TEST(CudaDevice, RegistersHostMemoryOnTheDeviceThatIsNamed) {
  ChildProcess child("register_on_second_device", {}, with_devices(2));
  child.expect("contexts 2");
  child.finish();
}

TEST(CudaDevice, AGraphKeepsAnObjectUntilItIsDestroyed) {
  ChildOptions options = with_devices(1);
  options.environment.emplace_back("FAKE_CUDA_CAPTURING", "1");
  ChildProcess child("keep_in_graph", {}, options);
  child.expect("kept, alive");
  child.expect("gone");
  child.expect("well");
  child.expect("depth 0 mode 0");
  child.finish();
}

TEST(CudaDevice, NothingIsKeptWhereNothingIsCaptured) {
  ChildProcess child("keep_in_graph", {}, with_devices(1));
  child.expect("not kept, gone");
  child.expect("gone");
  child.expect("well");
  child.expect("depth 0 mode 0");
  child.finish();
}

TEST(CudaDevice, ARefusedObjectIsLetGoOf) {
  for (const char* call :
       {"cuStreamGetCaptureInfo", "cuUserObjectCreate", "cuGraphRetainUserObject"}) {
    ChildOptions options = with_devices(1);
    options.environment.emplace_back("FAKE_CUDA_CAPTURING", "1");
    options.environment.emplace_back("FAKE_CUDA_FAIL", call);
    ChildProcess child("keep_in_graph", {}, options);
    child.expect("error, gone");
    child.expect("gone");
    child.expect("well");
    child.expect("depth 0 mode 0");
    child.finish();
  }
}

// CUDA_ERROR_LAUNCH_FAILED is an error that stays.
TEST(CudaDevice, ALostContextIsKnownByItsError) {
  ChildOptions options = with_devices(1);
  options.environment.emplace_back("FAKE_CUDA_FAIL", "cuStreamQuery");
  ChildProcess child("keep_in_graph", {}, options);
  child.expect("not kept, gone");
  child.expect("gone");
  child.expect("lost");
  child.expect("depth 0 mode 0");
  child.finish();
}

// Each call on the way into a context may be the one that says so.
TEST(CudaDevice, ALostContextOfADeviceThatLimboHasNotUsedIsKnownByItsErrorToo) {
  using Case = std::array<std::string, 3>;  // who has used it, what goes wrong, what is said
  const std::vector<Case> cases = {
      {"others", "cuDevicePrimaryCtxRetain", "lost for good"},
      {"others", "cuCtxGetCurrent", "lost for good"},
      {"others", "cuCtxPushCurrent", "lost for good"},
      {"others", "cuThreadExchangeStreamCaptureMode", "lost for good"},
      {"others", "cuStreamCreate", "lost for good"},
      {"others", "contexts", "lost for good"},
      {"nobody", "contexts", "lost for good"},  // not even this can be asked
      {"nobody", "cuDevicePrimaryCtxRetain", "well"},
  };
  for (const auto& [who, failing, said] : cases) {
    SCOPED_TRACE(who + " " + failing);
    ChildProcess child("meet_a_loss_at_the_door", {who, "FAKE_CUDA_FAIL", failing},
                       with_devices(2));
    child.expect(said);
    child.expect("depth 0 mode 0");
    child.finish();
  }
}

TEST(CudaDevice, ARefusalThatMayPassIsNoLoss) {
  ChildProcess child("meet_a_loss_at_the_door", {"others", "FAKE_CUDA_REFUSE", "1"},
                     with_devices(2));
  child.expect("well");
  child.expect("depth 0 mode 0");
  child.finish();
}

// It would say that the memory is registered already, for ever.
TEST(CudaDevice, HostMemoryThatRunsOutLeavesNothingRegistered) {
  ChildProcess child("register_with_little_host_memory", {}, with_devices(1));
  child.expect("works");
  child.finish();
}

TEST(CudaDevice, SaysNullWhereThereIsNoRoom) {
  ChildProcess child("run_out_of_memory", {}, with_devices(1));
  child.expect("null");
  child.finish();
}

TEST(CudaDevice, CountsNoneWhereNoneIsVisible) {
  ChildProcess child("look_for_devices", {}, with_devices(0));
  child.expect("0");
  EXPECT_NE(child.receive().find("No GPU is visible"), std::string::npos);
  child.finish();
}

LIMBO_CHILD_ROLE(ask_for_memory_users) {
  const std::unique_ptr<Device> device = make_cuda_device();
  for (const int index : {0, 1}) {
    std::string said;
    for (const MemoryUser& user : find_memory_users(*device, index)) {
      said += (user.is_this_process ? "this " : std::to_string(user.pid) + " ") +
              std::to_string(user.size_bytes >> 20U) + ", ";
    }
    child.send(said.empty() ? "nothing" : said);
  }
  return 0;
}

// The second GPU is not known to the stand-in for NVML.
TEST(CudaDevice, SaysWhoHasMemoryWhereNvmlKnows) {
  using Variable = std::pair<std::string, std::string>;
  const std::vector<std::pair<Variable, std::string>> cases = {
      {{"FAKE_NVML_PROCESSES", "3"}, "this 3072, 1 1, 2 2, "},
      {{"FAKE_NVML_FAIL", "nvmlInit"}, "nothing"},
      {{"FAKE_NVML_FAIL", "nvmlDeviceGetComputeRunningProcesses"}, "nothing"}};
  for (const auto& [variable, said] : cases) {
    ChildOptions options = with_devices(2);
    options.environment.emplace_back(variable);
    ChildProcess child("ask_for_memory_users", {}, options);
    child.expect(said);
    child.expect("nothing");
    child.finish();
  }
}

TEST(CudaDevice, AsksForAsManyProcessesAsThereAre) {
  ChildOptions options = with_devices(2);
  options.environment.emplace_back("FAKE_NVML_PROCESSES", "100");
  ChildProcess child("ask_for_memory_users", {}, options);
  EXPECT_TRUE(child.receive().ends_with(" 98 98, 99 99, "));
  child.expect("nothing");
  child.finish();
}

}  // namespace
}  // namespace limbo::testing

#endif
