#include "hooks/current_stream.h"

#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAStream.h>

#include <bit>
#include <unordered_map>
#include <utility>

#include "hooks/process.h"

namespace limbo {
namespace {

struct SimulatedThread {
  int device = 0;
  std::unordered_map<int, StreamHandle> streams;  // by device; absent: the default stream
};

SimulatedThread& simulated_thread() {
  static thread_local SimulatedThread state;
  return state;
}

}  // namespace

int current_device() {
  if (simulated()) return simulated_device();
  // Asking the runtime costs more than the allocation, and one GPU needs no question.
  static const bool only_one = c10::cuda::device_count() == 1;
  if (only_one) return 0;
  c10::DeviceIndex device = 0;
  C10_CUDA_CHECK(c10::cuda::GetDevice(&device));
  return device;
}

StreamRef current_stream(int device) {
  if (simulated()) return {device, simulated_stream(device)};
  return {device, c10::cuda::getCurrentCUDAStream(static_cast<c10::DeviceIndex>(device)).stream()};
}

StreamRef to_stream_ref(const c10::Stream& stream) {
  if (simulated()) return {stream.device_index(), std::bit_cast<StreamHandle>(stream.id())};
  return {stream.device_index(), c10::cuda::CUDAStream(stream).stream()};
}

int set_simulated_device(int device) noexcept {
  return std::exchange(simulated_thread().device, device);
}

StreamHandle set_simulated_stream(StreamRef stream) {
  return std::exchange(simulated_thread().streams[stream.device], stream.handle);
}

int simulated_device() noexcept {
  return simulated_thread().device;
}

StreamHandle simulated_stream(int device) {
  const auto& streams = simulated_thread().streams;
  const auto found = streams.find(device);
  return found == streams.end() ? nullptr : found->second;
}

}  // namespace limbo
