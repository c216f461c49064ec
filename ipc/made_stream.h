// A stream of Limbo's own that is being put where others find it.
#pragma once

#include "allocator/device/device.h"
#include "allocator/error.h"

namespace limbo {

// Makes it, and destroys it again unless it is kept.
class MadeStream {
 public:
  // Throws kDeviceError.
  MadeStream(Device& device, int device_index)
      : device_(device), stream_{device_index, device.create_stream(device_index)} {}
  ~MadeStream() {
    if (kept_) return;
    try {
      device_.destroy_stream(stream_);
    } catch (const std::exception&) {
      // The device is gone; so is the stream.
    }
  }
  MadeStream(const MadeStream&) = delete;
  MadeStream& operator=(const MadeStream&) = delete;

  [[nodiscard]] StreamRef get() const noexcept { return stream_; }
  void keep() noexcept { kept_ = true; }

 private:
  Device& device_;
  const StreamRef stream_;
  bool kept_ = false;
};

}  // namespace limbo
