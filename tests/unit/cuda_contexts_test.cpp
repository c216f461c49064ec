// Which GPUs the CUDA device uses: against a stand-in for libcuda that counts.
#ifdef LIMBO_FAKE_DRIVER_DIR

#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <thread>

#include "allocator/device/device.h"
#include "allocator/error.h"
#include "ipc/sharing.h"
#include "tests/support/child_process.h"
#include "tests/support/cuda_driver.h"
#include "tests/support/eventually.h"

namespace limbo::testing {
namespace {

int counted(const char* name) {
  return driver_function<int (*)()>(name)();
}

ChildOptions with_gpus(int count) {
  return {
      {{"LD_LIBRARY_PATH", LIMBO_FAKE_DRIVER_DIR}, {"FAKE_CUDA_DEVICES", std::to_string(count)}}};
}

LIMBO_CHILD_ROLE(wait_for_all_gpus) {
  const std::unique_ptr<Device> device = make_cuda_device();
  (void)device->memory_info(2);
  for (int index = 0; index < device->device_count(); ++index) device->synchronize_device(index);
  child.send("contexts " + std::to_string(counted("fakeCudaContexts")));
  child.send("waits " + std::to_string(counted("fakeCudaFrees")));
  return 0;
}

TEST(CudaContexts, WaitingForADeviceThatNobodyUsesMakesNoContext) {
  ChildOptions options = with_gpus(8);
  options.environment.emplace_back("FAKE_CUDA_REFUSE", "5");
  ChildProcess child("wait_for_all_gpus", {}, options);
  child.expect("contexts 4");
  child.expect("waits 1");
  child.finish();
}

std::string contexts() {
  return "contexts " + std::to_string(counted("fakeCudaContexts"));
}

bool has_rows() {
  std::ifstream maps("/proc/self/maps");
  const std::string text{std::istreambuf_iterator<char>(maps), {}};
  return text.find("limbo-row") != std::string::npos;
}

ChildOptions lending_with_gpus(int count) {
  ChildOptions options = with_gpus(count);
  options.environment.emplace_back("LIMBO_DEVICE", "cuda");
  return options;
}

// Lends memory of a GPU, does what a process does now and then to all of them, and waits.
LIMBO_CHILD_ROLE(lend_on_gpu) {
  const StreamRef stream{std::stoi(child.argument(0)), nullptr};
  Allocator& allocator = process_allocator();
  Sharing& sharing = process_sharing();
  void* data = allocator.allocate(std::size_t{1} << 20, stream);
  child.send_bytes(sharing.share(data, 512, {.current_stream = stream}, {}));
  child.send_bytes(sharing.share(data, 512, {.current_stream = stream}, {}));
  for (int index = 0; index < allocator.device().device_count(); ++index) {
    allocator.set_limit_bytes(index, allocator.device().total_memory_bytes(index) / 2);
    (void)allocator.stats(index);
    (void)allocator.device().is_lost(index);
    (void)allocator.device().has_stream_memory_operations(index);
    allocator.empty_cache(index);
  }
  allocator.empty_cache();
  (void)allocator.snapshot();
  (void)sharing.collect();
  (void)sharing.reap(false);
  (void)sharing.holders();
  (void)sharing.drain(std::chrono::milliseconds(1));
  child.send(contexts());
  child.park();
  return 0;
}

// Sharing starts before the driver does, as in a program that only asks who it is, or whose first act is
// to receive. While it waits at its exit for its message to be opened, the device is still needed.
LIMBO_CHILD_ROLE(leave_with_a_message) {
  Sharing& sharing = process_sharing();
  (void)sharing.incarnation();
  const StreamRef stream{0, nullptr};
  void* data = process_allocator().allocate(std::size_t{1} << 20, stream);
  (void)sharing.share(data, 512, {.current_stream = stream}, {});
  std::thread([&child] {
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    child.send("ended " + std::to_string(counted("fakeCudaHasEnded")));
  }).detach();
  std::exit(0);  // not by a return, which would end `child` first
}

TEST(CudaContexts, TheDriverEndsBehindTheExitThatWaitsForMessages) {
  ChildOptions options = lending_with_gpus(1);
  options.environment.emplace_back("LIMBO_EXIT_DRAIN_MS", "60000");
  ChildProcess child("leave_with_a_message", {}, options);
  child.expect("ended 0");
  child.kill();
}

LIMBO_CHILD_ROLE(receive_on_gpu) {
  const Bytes unwanted = child.receive_bytes();
  const Bytes message = child.receive_bytes();
  ReceiveOptions options;
  options.check_extra = [](const Bytes&) { throw Error(ErrorCode::kBadArgument, "Not that one."); };
  try {
    (void)process_sharing().receive(unwanted, options);
  } catch (const Error& error) {
    child.send(error.what());
  }
  child.send(contexts());
  Received received = process_sharing().receive(message, {});
  child.send(contexts());
  received.block.reset();
  child.send("released");
  (void)child.receive();  // the sender has ended
  child.send(eventually([] { return !has_rows(); }) ? "forgotten" : "its tables are here still");
  child.send(contexts());
  return 0;
}

// The GPU of what was allocated and received, and no other: not the first one either, and no context can
// be made there.
TEST(CudaContexts, LendingAndReceivingUseTheirOwnGpuAlone) {
  ChildOptions options = lending_with_gpus(8);
  options.environment.emplace_back("FAKE_CUDA_REFUSE", "0");
  ChildProcess sender("lend_on_gpu", {"5"}, options);
  ChildProcess reader("receive_on_gpu", {}, options);
  reader.send_bytes(sender.receive_bytes());
  reader.send_bytes(sender.receive_bytes());
  sender.expect("contexts 32");
  reader.expect("Not that one.");
  reader.expect("contexts 0");
  reader.expect("contexts 32");
  reader.expect("released");
  sender.kill();
  reader.send("it has ended");
  reader.expect("forgotten");
  reader.expect("contexts 32");
  reader.finish();
}

}  // namespace
}  // namespace limbo::testing

#endif
