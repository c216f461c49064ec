// What comes before what inside a capture, for devices that can tell.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "allocator/device/device.h"

namespace limbo {

// What a stream had captured by some moment. It keeps nothing of the capture alive.
class CapturePoint {
 public:
  virtual ~CapturePoint() = default;
};

// A Device that can tell is one of these too (dynamic_cast). Thread-safe as the device is, and like
// its calls these disturb no capture.
class CaptureOrder {
 public:
  virtual ~CaptureOrder() = default;

  // Null where the stream is not being captured, or the driver cannot tell.
  [[nodiscard]] virtual std::shared_ptr<const CapturePoint> captured_so_far(
      StreamRef stream) noexcept = 0;

  // For each point whether everything up to it comes before whatever `stream` captures next. False
  // also where it is of another capture, and where the driver cannot tell.
  [[nodiscard]] virtual std::vector<bool> come_before(
      std::span<const std::shared_ptr<const CapturePoint>> points, StreamRef stream) = 0;
};

}  // namespace limbo
