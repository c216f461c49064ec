// The calling thread's current device and stream, on CUDA from c10, on the simulated device from
// this file, and how torch's streams are named to the device.
#pragma once

#include <c10/core/Stream.h>

#include "allocator/device/device.h"

namespace limbo {

// The device that an allocation of the calling thread goes to.
[[nodiscard]] int current_device();

[[nodiscard]] StreamRef current_stream(int device);

// The stream that torch means. On the simulated device a stream's id is its handle.
[[nodiscard]] StreamRef to_stream_ref(const c10::Stream& stream);

// ---- the simulated device -----------------------------------------------------------------------

// Per thread; 0 and the default stream at first. Each returns what was there before.
int set_simulated_device(int device) noexcept;
StreamHandle set_simulated_stream(StreamRef stream);
[[nodiscard]] int simulated_device() noexcept;
[[nodiscard]] StreamHandle simulated_stream(int device);

}  // namespace limbo
