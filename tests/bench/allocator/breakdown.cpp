// Where the nanoseconds of a pair are: an allocator that does nothing stands in torch's place, then
// does one part more from row to row of what every allocator of torch's has to do.
#include <c10/core/Allocator.h>
#include <c10/core/impl/GPUTrace.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAStream.h>
#include <c10/util/ThreadLocalDebugInfo.h>
#include <torch/csrc/cuda/CUDAPluggableAllocator.h>

#include <atomic>

#include "allocator/device/current_context.h"
#include "ipc/sharing.h"
#include "tests/bench/allocator/subjects.h"
#include "tests/bench/allocator/workloads.h"

namespace limbo::bench {
namespace {

namespace torch_cuda = c10::cuda::CUDACachingAllocator;
using Pluggable = torch::cuda::CUDAPluggableAllocator::CUDAPluggableAllocator;

enum Part : unsigned {
  kStream = 1,
  kProfiler = 2,
  kTrace = 4,
  kTargetDevice = 8,
  kDevice = 16,
  kCore = 32,
  kProfilerState = 64,
  kContextDevice = 128,
};

std::atomic<std::uint64_t> sink{0};  // so that nothing is left out

template <unsigned Parts>
class Partial final : public Pluggable {
 public:
  Partial()
      : Pluggable([](std::size_t, int, cudaStream_t) -> void* { return nullptr; },
                  [](void*, std::size_t, int, cudaStream_t) {}) {}

  void* raw_alloc(std::size_t size_bytes) override {
    c10::DeviceIndex device = 0;
    if constexpr ((Parts & kTargetDevice) != 0) c10::cuda::SetTargetDevice();
    if constexpr ((Parts & kDevice) != 0) (void)c10::cuda::GetDevice(&device);
    if constexpr ((Parts & kContextDevice) != 0) {
      device = static_cast<c10::DeviceIndex>(current_context_device());
    }
    if constexpr ((Parts & kStream) != 0) {
      if (c10::cuda::getCurrentCUDAStream(0).id() != 0) note();
    }
    void* data = this;
    if constexpr ((Parts & kCore) != 0) {
      data = core_.allocate(size_bytes, StreamRef{device, nullptr});
    }
    look();
    return data;
  }
  void raw_delete(void* data) override {
    look();
    if constexpr ((Parts & kCore) != 0) core_.free(data);
    if (data == nullptr) note();
  }

 private:
  limbo::Allocator& core_ = process_allocator();
  static void note() { sink.fetch_add(1, std::memory_order_relaxed); }
  static void look() {
    if constexpr ((Parts & kTrace) != 0) {
      if (c10::impl::GPUTrace::get_trace() != nullptr) note();
    }
    if constexpr ((Parts & kProfiler) != 0) {
      if (c10::memoryProfilingEnabled()) note();
    }
    if constexpr ((Parts & kProfilerState) != 0) {
      constexpr auto kKind = c10::DebugInfoKind::PROFILER_STATE;
      if (c10::ThreadLocalDebugInfo::get(kKind) != nullptr) note();
    }
  }
};

struct InPlace {
  static void* allocate(std::size_t size_bytes) { return torch_cuda::raw_alloc(size_bytes); }
  static void free(void* data) { torch_cuda::raw_delete(data); }
};

template <unsigned Parts>
Measurement part_row(std::string name, std::string what) {
  Measurement row;
  row.name = "part-" + std::move(name);
  row.what = std::move(what);
  row.run = [](std::uint64_t count) {
    static auto* partial = new Partial<Parts>;  // torch may look at it until the process ends
    torch_cuda::CUDAAllocator* before = torch_cuda::allocator.exchange(partial);
    const double seconds = pairs<InPlace>(4096, count);
    torch_cuda::allocator.store(before);
    return seconds;
  };
  return row;
}

Measurement primitive(std::string name, std::string what, double (*run)(std::uint64_t)) {
  Measurement row;
  row.name = "part-" + std::move(name);
  row.what = std::move(what);
  row.run = run;
  return row;
}

double compare_and_swaps(std::uint64_t count) {
  const auto start = Clock::now();
  for (std::uint64_t i = 0; i < count; ++i) {
    std::uint64_t seen = sink.load(std::memory_order_relaxed);
    sink.compare_exchange_strong(seen, seen + 1, std::memory_order_acq_rel);
  }
  return seconds_since(start);
}

}  // namespace

std::vector<Measurement> breakdown_rows() {
  std::vector<Measurement> rows;
  rows.push_back(
      primitive("cas", "one compare-and-swap on a word of one's own", compare_and_swaps));
  rows.push_back(part_row<0>("calls", "both virtual calls and nothing else"));
  const char* gpu = gpu_name() == "simulated" ? "torch's current stream needs a GPU" : "";
  auto stream = part_row<kStream>("stream", "calls, torch's current stream");
  auto profiler = part_row<kProfiler>("profiler", "calls, memoryProfilingEnabled twice");
  auto state = part_row<kProfilerState>("profiler-state",
                                        "calls, whether there is a profiler's state, twice");
  auto trace = part_row<kTrace>("trace", "calls, GPUTrace twice");
  auto c10_itself = part_row<kStream | kProfiler | kTrace>(
      "c10", "calls, stream, profiler, trace: what c10 itself costs");
  auto target = part_row<kTargetDevice>("target-device", "calls, SetTargetDevice");
  auto device = part_row<kDevice>("device", "calls, c10::cuda::GetDevice");
  auto context = part_row<kTargetDevice | kContextDevice>(
      "context-device",
      "calls, SetTargetDevice, cuCtxGetCurrent: what Limbo asks with several GPUs");
  auto core = part_row<kCore>("core", "calls, limbo::Allocator");
  auto all = part_row<kStream | kProfiler | kTrace | kCore>(
      "all", "calls, stream, profiler, trace, limbo::Allocator");
  for (Measurement* row : {&stream, &c10_itself, &target, &device, &context, &all}) {
    if (*gpu == '\0') continue;
    row->run = nullptr;
    row->skipped = gpu;
  }
  for (Measurement* row :
       {&stream, &profiler, &state, &trace, &c10_itself, &target, &device, &context, &core, &all}) {
    rows.push_back(std::move(*row));
  }
  return rows;
}

}  // namespace limbo::bench
