// A stream that uses a block, by the driver's own name for it.
#pragma once

#include <cstdint>

#include "allocator/capture_gate.h"
#include "allocator/device/device.h"

namespace limbo {

// A stream, and the driver's own name for it: handles are reused, ids are not.
struct StreamUse {
  StreamRef stream;
  std::uint64_t id = 0;

  friend bool operator==(const StreamUse&, const StreamUse&) = default;
};

// The id of a stream that was named while it was being captured, when it must not be asked for its
// own. What it had queued is waited for with the device.
inline constexpr std::uint64_t kNamedInCapture = ~std::uint64_t{0};

// Throws as the device's questions do.
[[nodiscard]] inline StreamUse name_stream(Device& device, StreamRef stream) {
  const StreamQuestion question(device, StreamQuestion::Patient{});
  return {stream, device.is_capturing(stream) ? kNamedInCapture : device.stream_id(stream)};
}

}  // namespace limbo
