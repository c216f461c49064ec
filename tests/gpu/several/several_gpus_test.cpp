// Which GPU an allocation goes to, and what one GPU's allocator does to another's, by torch's C++
// interface. Each test is a process of its own: a GPU gets its context once in a process's life.
#include <ATen/Context.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "hooks/install.h"
#include "tests/support/child_process.h"

namespace limbo::testing {
namespace {

namespace torch_cuda = c10::cuda::CUDACachingAllocator;
using torch_cuda::raw_alloc;
using torch_cuda::raw_delete;

constexpr std::size_t kSeveralMiB = 1 << 20;

void check(const char* what, cudaError_t result) {
  if (result != cudaSuccess) {
    throw std::runtime_error(std::string(what) + ": " + cudaGetErrorString(result));
  }
}

// Limbo is torch's allocator, and GPU 0 alone has a context.
void begin_on_the_first() {
  install();
  at::globalContext().lazyInitDevice(at::kCUDA);
  check("cudaSetDevice", c10::cuda::SetDevice(0, true));
  check("cudaFree", cudaFree(nullptr));
}

// The GPU whose memory this is, as the runtime knows it.
int where(const void* data) {
  cudaPointerAttributes found{};
  check("cudaPointerGetAttributes", cudaPointerGetAttributes(&found, data));
  return found.device;
}

// "1": an allocation of this thread goes to GPU 1.
std::string next_goes_to() {
  void* data = raw_alloc(4096);
  const int device = where(data);
  raw_delete(data);
  return std::to_string(device);
}

std::string second_has_context() {
  return c10::cuda::hasPrimaryContext(1) ? "context" : "no context";
}

std::int64_t bytes(c10::DeviceIndex device, bool reserved = false) {
  const auto stats = torch_cuda::getDeviceStats(device);
  return (reserved ? stats.reserved_bytes : stats.allocated_bytes)[0].current;
}

LIMBO_CHILD_ROLE(allocate_where_promised) {
  begin_on_the_first();
  child.send(next_goes_to());
  check("MaybeSetDevice", c10::cuda::MaybeSetDevice(1));
  child.send(second_has_context());
  child.send(next_goes_to());
  child.send(second_has_context());
  child.send(std::to_string(c10::cuda::current_device()));
  check("SetDevice", c10::cuda::SetDevice(0));
  child.send(next_goes_to());
  return 0;
}

// A thread is promised a GPU that gets its context from another thread.
LIMBO_CHILD_ROLE(allocate_where_promised_before) {
  begin_on_the_first();
  constexpr int kMany = 3000;  // so that it is looked again which GPUs have a context
  for (int i = 0; i < kMany; ++i) raw_delete(raw_alloc(4096));
  check("MaybeSetDevice", c10::cuda::MaybeSetDevice(1));
  child.send(second_has_context());
  std::thread([] {
    check("cudaSetDevice", c10::cuda::SetDevice(1, true));
    check("cudaFree", cudaFree(nullptr));
  }).join();
  child.send(second_has_context());
  child.send(next_goes_to());
  check("SetDevice", c10::cuda::SetDevice(0));
  for (int i = 0; i < kMany; ++i) raw_delete(raw_alloc(4096));
  child.send(next_goes_to());
  check("MaybeSetDevice", c10::cuda::MaybeSetDevice(1));
  child.send(next_goes_to());
  child.send(std::to_string(c10::cuda::MaybeExchangeDevice(0)));
  child.send(next_goes_to());
  return 0;
}

// Switches to the GPU in one of the ways there are.
void switch_to(int device, int way) {
  const auto index = static_cast<c10::DeviceIndex>(device);
  if (way == 0) check("SetDevice", c10::cuda::SetDevice(index));
  if (way == 1) check("MaybeSetDevice", c10::cuda::MaybeSetDevice(index));
  if (way == 2) (void)c10::cuda::ExchangeDevice(index);
  if (way == 3) (void)c10::cuda::MaybeExchangeDevice(index);
  if (way == 4) check("cudaSetDevice", cudaSetDevice(device));
}

int wrong_gpus_of_a_thread(int thread) {
  std::array<void*, 16> live{};
  int wrong = 0;
  for (int i = 0; i < 2000; ++i) {
    const int device = (i + thread) % 2;
    switch_to(device, i % 5);
    void*& slot = live[static_cast<std::size_t>(i) % live.size()];
    if (slot != nullptr) raw_delete(slot);  // of the one GPU or the other
    slot = raw_alloc(std::size_t{512} << (i % 7));
    wrong += where(slot) == device ? 0 : 1;
  }
  for (void* data : live) raw_delete(data);
  return wrong;
}

LIMBO_CHILD_ROLE(switch_on_every_call) {
  begin_on_the_first();
  std::array<int, 8> wrong{};
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < wrong.size(); ++i) {
    threads.emplace_back([&wrong, i] { wrong[i] = wrong_gpus_of_a_thread(static_cast<int>(i)); });
  }
  for (std::thread& thread : threads) thread.join();
  int all = 0;
  for (const int each : wrong) all += each;
  child.send("wrong " + std::to_string(all));
  child.send("left " + std::to_string(bytes(0)) + " " + std::to_string(bytes(1)));
  torch_cuda::emptyCache();
  child.send("reserved " + std::to_string(bytes(0, true)) + " " + std::to_string(bytes(1, true)));
  return 0;
}

// Copies between the GPUs with the allocator's own copy; how many bytes came out wrong.
int wrong_bytes_of_copy(bool there, bool peer_access) {
  constexpr std::size_t kBytes = 3 * kSeveralMiB;
  const int from_device = there ? 0 : 1;
  const int to_device = 1 - from_device;
  check("SetDevice", c10::cuda::SetDevice(static_cast<c10::DeviceIndex>(to_device)));
  void* to = raw_alloc(kBytes);
  check("cudaMemset", cudaMemset(to, 0, kBytes));
  check("SetDevice", c10::cuda::SetDevice(static_cast<c10::DeviceIndex>(from_device)));
  void* from = raw_alloc(kBytes);
  const cudaStream_t stream = c10::cuda::getCurrentCUDAStream();
  check("cudaMemsetAsync", cudaMemsetAsync(from, 0x5A, kBytes, stream));
  check("memcpyAsync",
        torch_cuda::memcpyAsync(to, to_device, from, from_device, kBytes, stream, peer_access));
  check("cudaStreamSynchronize", cudaStreamSynchronize(stream));
  std::vector<unsigned char> host(kBytes);
  check("cudaMemcpy", cudaMemcpy(host.data(), to, kBytes, cudaMemcpyDeviceToHost));
  raw_delete(from);
  raw_delete(to);
  int wrong = 0;
  for (const unsigned char byte : host) wrong += byte == 0x5A ? 0 : 1;
  return wrong;
}

// What the runtime answers to a change of what one GPU reaches of the other, which changes nothing if
// all is as the test expects it.
std::string answer(bool from_first, cudaError_t (*change)(int peer)) {
  const c10::cuda::CUDAGuard guard(from_first ? 0 : 1);
  const cudaError_t result = change(from_first ? 1 : 0);
  (void)cudaGetLastError();
  return cudaGetErrorName(result);
}

LIMBO_CHILD_ROLE(copy_between_gpus) {
  begin_on_the_first();
  for (const bool there : {true, false}) {
    child.send("wrong " + std::to_string(wrong_bytes_of_copy(there, false)));
  }
  check("SetDevice", c10::cuda::SetDevice(0));
  for (const bool first : {true, false}) {
    child.send(answer(first, [](int peer) { return cudaDeviceDisablePeerAccess(peer); }));
  }
  for (int i = 0; i < 2; ++i) {  // a second time is no error, and leaves none behind
    torch_cuda::enablePeerAccess(0, 1);
    torch_cuda::enablePeerAccess(1, 0);
  }
  child.send(std::string("last error: ") + cudaGetErrorString(cudaGetLastError()));
  child.send(std::to_string(c10::cuda::current_device()));
  for (const bool first : {true, false}) {
    child.send(answer(first, [](int peer) { return cudaDeviceEnablePeerAccess(peer, 0); }));
  }
  for (const bool there : {true, false}) {
    child.send("wrong " + std::to_string(wrong_bytes_of_copy(there, true)));
  }
  return 0;
}

// A callback that frees what it was given, of whatever GPU.
std::vector<void*> to_be_freed;

class FreesWhatItWasGiven final : public c10::FreeMemoryCallback {
 public:
  bool Execute() override {
    const auto mine = std::exchange(to_be_freed, {});
    for (void* data : mine) raw_delete(data);
    return !mine.empty();
  }
};

std::string try_on_the_first(std::size_t size_bytes) {
  check("SetDevice", c10::cuda::SetDevice(0));
  try {
    raw_delete(raw_alloc(size_bytes));
    return "memory";
  } catch (const c10::OutOfMemoryError&) {
    return "out of memory";
  }
}

LIMBO_CHILD_ROLE(free_another_gpus_blocks_in_a_callback) {
  begin_on_the_first();
  constexpr std::size_t kBytes = 48 * kSeveralMiB;
  std::size_t free_bytes = 0;
  std::size_t total_bytes = 0;
  check("cudaMemGetInfo", cudaMemGetInfo(&free_bytes, &total_bytes));
  torch_cuda::setMemoryFraction(64.5 * kSeveralMiB / static_cast<double>(total_bytes), 0);
  void* held = raw_alloc(kBytes);
  const auto blocks_of_the_second = [] {
    check("SetDevice", c10::cuda::SetDevice(1));
    std::vector<void*> blocks;
    for (int i = 0; i < 3; ++i) blocks.push_back(raw_alloc(kBytes));
    return blocks;
  };
  const auto say = [&](const std::string& outcome) {
    child.send(outcome + ", " + std::to_string(bytes(0) >> 20) + " and " +
               std::to_string(bytes(1) >> 20) + " MiB");
  };
  to_be_freed = blocks_of_the_second();
  say(try_on_the_first(kBytes));
  auto blocks = blocks_of_the_second();
  blocks.push_back(held);
  to_be_freed = std::move(blocks);
  say(try_on_the_first(kBytes));
  return 0;
}

class SeveralGpusTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (c10::cuda::device_count() < 2) GTEST_SKIP() << "needs two GPUs";
  }
};

TEST_F(SeveralGpusTest, AnAllocationGoesToThePromisedGpu) {
  ChildProcess child("allocate_where_promised");
  child.expect("0");
  child.expect("no context");  // a promise makes none
  child.expect("1");
  child.expect("context");
  child.expect("1");
  child.expect("0");
  child.finish();
}

TEST_F(SeveralGpusTest, APromiseStandsWhenAnotherThreadMakesTheContext) {
  ChildProcess child("allocate_where_promised_before");
  child.expect("no context");
  child.expect("context");
  child.expect("1");
  child.expect("0");
  child.expect("1");
  child.expect("1");
  child.expect("0");
  child.finish();
}

TEST_F(SeveralGpusTest, ThreadsThatSwitchOnEveryCallGetMemoryOfTheirGpu) {
  ChildProcess child("switch_on_every_call");
  child.expect("wrong 0");
  child.expect("left 0 0");
  child.expect("reserved 0 0");
  child.finish();
}

TEST_F(SeveralGpusTest, CopiesGoBothWaysWithAndWithoutPeerAccess) {
  ChildProcess child("copy_between_gpus");
  for (int i = 0; i < 2; ++i) child.expect("wrong 0");
  for (int i = 0; i < 2; ++i) child.expect("cudaErrorPeerAccessNotEnabled");
  child.expect("last error: no error");
  child.expect("0");
  for (int i = 0; i < 2; ++i) child.expect("cudaErrorPeerAccessAlreadyEnabled");
  for (int i = 0; i < 2; ++i) child.expect("wrong 0");
  child.finish();
}

TEST_F(SeveralGpusTest, ACallbackOfOneGpuFreesBlocksOfAnother) {
  ChildProcess child("free_another_gpus_blocks_in_a_callback");
  child.expect("out of memory, 48 and 0 MiB");
  child.expect("memory, 0 and 0 MiB");
  child.finish();
}

}  // namespace
}  // namespace limbo::testing

namespace c10 {
REGISTER_FREE_MEMORY_CALLBACK(frees_what_it_was_given, ::limbo::testing::FreesWhatItWasGiven)
}
