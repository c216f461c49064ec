// The calling thread's current device and stream, on CUDA from c10, on the simulated device from
// this file, and how torch's streams are named to the device.
#pragma once

#include <c10/core/Stream.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAStream.h>

#include <atomic>
#include <cstdint>

#include "allocator/device/current_context.h"
#include "allocator/device/device.h"

namespace limbo {

// The device that an allocation of the calling thread goes to.
[[nodiscard]] int current_device();

[[nodiscard]] StreamRef current_stream(int device);

// Whether a current stream is torch's own (a default one, or of its pools), which lives for good. One
// that the program made (torch.cuda.ExternalStream) it may destroy.
[[nodiscard]] bool is_torchs_own(StreamRef current);

// Both at once, as every allocation asks for them.
[[nodiscard]] StreamRef current_place();

// The stream that torch means. On the simulated device a stream's id is its handle.
[[nodiscard]] StreamRef to_stream_ref(const c10::Stream& stream);

// Makes the device's context current in the calling thread, once, where the thread has none: what the
// runtime's own allocation does, and Limbo's, which goes by the driver, does not. A thread without
// one pays a microsecond for every question to the runtime, torch's own included. `device` is the
// thread's current one, and the thread was given memory of it, so that the context is there.
void give_context_once(int device) noexcept;

// ---- behind current_place -----------------------------------------------------------------------

namespace current_stream_detail {

enum class Question : std::uint8_t {
  kUnknown = 0,
  kStreamOnly,  // one GPU is visible, so nobody is asked for the device
  kDeviceAndStream,
  kSimulated,
};
extern constinit std::atomic<Question> question;  // decided at the first call

// The stream of torch's id on the device. Most programs use one stream for long, so each thread
// keeps the last one.
[[nodiscard]] StreamHandle handle_of(const c10::cuda::CUDAStream& stream);
[[nodiscard]] StreamRef ask_for_more();

[[nodiscard]] inline StreamRef stream_of_torch(int device) {
  // The device is named, because c10 would ask the runtime for it.
  const auto stream = c10::cuda::getCurrentCUDAStream(static_cast<c10::DeviceIndex>(device));
  if (stream.id() == 0) return {device, nullptr};  // the default one
  return {device, handle_of(stream)};
}

void see_to_context(int device) noexcept;

// Makes a device current that c10 has promised to this thread and not passed on yet, as every call
// of c10's does first. It promises only devices without a context (a context is not to be made where
// memory is not wanted), so that a thread has nothing to ask once all have theirs.
void look_for_contexts();
inline void keep_promise() {
  ThreadWordsOfContext& thread = words_of_context;
  if (thread.nothing_is_promised) return;
  c10::cuda::SetTargetDevice();
  if (--thread.calls_until_look == 0) look_for_contexts();
}

}  // namespace current_stream_detail

inline void give_context_once(int device) noexcept {
  if (!words_of_context.context_was_seen_to) [[unlikely]] {
    current_stream_detail::see_to_context(device);
  }
}

inline StreamRef current_place() {
  using namespace current_stream_detail;
  const Question asked = question.load(std::memory_order_relaxed);
  if (asked == Question::kStreamOnly) [[likely]] {
    return stream_of_torch(0);
  }
  if (asked == Question::kDeviceAndStream) {
    keep_promise();
    // The driver is asked, because the runtime costs more than the allocation.
    const int device = current_context_device();
    if (device >= 0) [[likely]] {
      return stream_of_torch(device);
    }
  }
  return ask_for_more();
}

// ---- the simulated device -----------------------------------------------------------------------

// Per thread; 0 and the default stream at first. Each returns what was there before.
int set_simulated_device(int device) noexcept;
StreamHandle set_simulated_stream(StreamRef stream);
[[nodiscard]] int simulated_device() noexcept;
[[nodiscard]] StreamHandle simulated_stream(int device);

}  // namespace limbo
