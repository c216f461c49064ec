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

// What the thread's last stream was translated to.
struct LastStream {
  c10::StreamId id = 0;
  StreamHandle handle = nullptr;
  int device = -1;
};
thread_local constinit LastStream last;

using current_stream_detail::Question;

Question decide_question() {
  Question decided = Question::kDeviceAndStream;
  if (simulated()) {
    decided = Question::kSimulated;
  } else if (c10::cuda::device_count() == 1) {
    decided = Question::kStreamOnly;
  }
  current_stream_detail::question.store(decided, std::memory_order_relaxed);
  return decided;
}

Question the_question() {
  const Question known = current_stream_detail::question.load(std::memory_order_relaxed);
  return known == Question::kUnknown ? decide_question() : known;
}

// torch answers once it has set CUDA up, and throws before.
bool has_primary_context(int device) noexcept {
  try {
    return c10::cuda::hasPrimaryContext(static_cast<c10::DeviceIndex>(device));
  } catch (...) {
    return false;
  }
}

// The driver has no context current in this thread, so the runtime is asked. Both are slow without
// one (a microsecond, and many with several threads), and torch's set_device does not always make
// one current; where the device has its context, this thread gets it, once.
int device_of_runtime() {
  c10::DeviceIndex device = 0;
  C10_CUDA_CHECK(c10::cuda::GetDevice(&device));
  if (has_primary_context(device)) give_context_once(device);
  return device;
}

int device_of_driver() {
  current_stream_detail::keep_promise();
  const int device = current_context_device();
  return device >= 0 ? device : device_of_runtime();
}

}  // namespace

constinit std::atomic<Question> current_stream_detail::question{Question::kUnknown};

void current_stream_detail::see_to_context(int device) noexcept {
  words_of_context.context_was_seen_to = true;
  if (simulated() || current_context_device() >= 0) return;
  // A refusal changes nothing; it is not to be found by the next call either.
  if (c10::cuda::SetDevice(static_cast<c10::DeviceIndex>(device), true) != cudaSuccess) {
    (void)cudaGetLastError();
  }
}

void current_stream_detail::look_for_contexts() {
  constexpr std::uint16_t kCallsBetweenLooks = 1024;
  words_of_context.calls_until_look = kCallsBetweenLooks;
  if (!every_device_has_context()) return;
  c10::cuda::SetTargetDevice();  // what was promised before the last of them was there
  words_of_context.nothing_is_promised = true;
}

int current_device() {
  switch (the_question()) {
    case Question::kSimulated:
      return simulated_device();
    case Question::kStreamOnly:
      return 0;
    default:
      return device_of_driver();
  }
}

StreamRef current_stream(int device) {
  if (simulated()) return {device, simulated_stream(device)};
  return current_stream_detail::stream_of_torch(device);
}

bool is_torchs_own(StreamRef current) {
  if (current.handle == nullptr) return true;
  if (simulated()) return false;
  // torch's id of a stream that it did not make is the stream's handle.
  const auto id =
      c10::cuda::getCurrentCUDAStream(static_cast<c10::DeviceIndex>(current.device)).id();
  return std::bit_cast<StreamHandle>(id) != current.handle;
}

StreamRef current_stream_detail::ask_for_more() {
  return current_stream(current_device());
}

StreamHandle current_stream_detail::handle_of(const c10::cuda::CUDAStream& stream) {
  if (stream.id() == last.id && stream.device_index() == last.device) return last.handle;
  last.handle = stream.stream();
  last.id = stream.id();
  last.device = stream.device_index();
  return last.handle;
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
