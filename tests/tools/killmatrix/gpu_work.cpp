#include "tests/tools/killmatrix/gpu_work.h"

#include <algorithm>
#include <exception>
#include <stdexcept>

#include "allocator/capture_gate.h"
#include "allocator/device/sim_device.h"
#include "allocator/error.h"

namespace limbo::killmatrix {
namespace {

constexpr std::size_t kScratchBytes = std::size_t{2} << 20;

}  // namespace

GpuWork::GpuWork(Device& device) : device_(device) {
  for (std::size_t i = 1; i < kStreams; ++i) streams_[i] = device_.create_stream(0);
  event_ = device_.create_event(0);
  if (device_.name() == "simulated") return;
  scratch_ = device_.try_allocate(0, kScratchBytes);
  if (scratch_ == nullptr) throw std::runtime_error("no memory for the slow kernels");
  kernels().prepare(0);
}

testing::TestKernels& GpuWork::kernels() {
  if (!kernels_) kernels_ = testing::make_test_kernels(device_);
  return *kernels_;
}

void GpuWork::order(StreamHandle earlier, StreamHandle later) {
  if (earlier == later) return;
  device_.record_event(ref(earlier), event_);
  device_.wait_event(ref(later), event_);
}

void GpuWork::fill(StreamHandle stream, void* data, std::size_t size_bytes, std::uint32_t canary) {
  device_.fill(ref(stream), data, canary, size_bytes / sizeof(canary));
}

void GpuWork::delay(StreamHandle stream, std::chrono::milliseconds duration) {
  if (scratch_ == nullptr) {
    as_sim(device_).enqueue_kernel(ref(stream), duration, nullptr, 0, 0);
  } else {
    kernels().write_for(ref(stream), scratch_, 1, 1, duration);
  }
}

void GpuWork::write_for(StreamHandle stream, void* data, std::size_t size_bytes,
                        std::uint32_t canary, std::chrono::milliseconds duration) {
  kernels().write_for(ref(stream), data, canary, size_bytes / sizeof(canary), duration);
}

std::optional<std::uint32_t> GpuWork::foreign_word(StreamHandle stream, const void* data,
                                                   std::size_t size_bytes, std::uint32_t canary) {
  words_.resize(std::min(size_bytes, kBytesLookedAt) / sizeof(canary));
  device_.copy_to_host(ref(stream), words_.data(), data, words_.size() * sizeof(canary));
  const auto found = std::find_if(words_.begin(), words_.end(),
                                  [&](std::uint32_t word) { return word != canary; });
  if (found == words_.end()) return std::nullopt;
  return *found;
}

void GpuWork::capture(StreamHandle stream, int launches, const std::function<void()>& during) {
  SimDevice& sim = as_sim(device_);
  {
    const BeginningCapture beginning(ref(stream));
    sim.begin_capture(ref(stream), SimCaptureMode::kRelaxed);
  }
  std::exception_ptr failure;
  try {
    during();
  } catch (...) {
    failure = std::current_exception();
  }
  const std::unique_ptr<SimGraph> graph = sim.end_capture(ref(stream));
  if (failure) std::rethrow_exception(failure);
  for (int i = 0; i < launches; ++i) sim.launch_graph(ref(stream), *graph);
}

void GpuWork::destroy_stream(StreamHandle stream) {
  device_.synchronize_stream(ref(stream));
  device_.destroy_stream(ref(stream));
}

void GpuWork::lose_context() {
  as_sim(device_).inject_sticky_error(0, "an illegal memory access was encountered");
}

}  // namespace limbo::killmatrix
