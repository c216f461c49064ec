// Two kernels that tests need on every device: one that keeps writing, one that checks.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "allocator/device/device.h"

namespace limbo::testing {

class TestKernels {
 public:
  virtual ~TestKernels() = default;

  // Loads the kernels on `device`. CUDA loads lazily and blocks the launching thread while a stream
  // waits, so tests that make streams wait call this first.
  virtual void prepare(int device) = 0;

  // Behind the stream's earlier work: writes `value` into every word of data[0, count_words) again
  // and again, for `duration` (at least once). Returns at once.
  virtual void write_for(StreamRef stream, void* data, std::uint32_t value, std::size_t count_words,
                         std::chrono::milliseconds duration) = 0;

  // Behind the stream's earlier work: counts the words of data[0, count_words) that differ from
  // `value`. Waits for the result.
  [[nodiscard]] virtual std::uint64_t count_different(StreamRef stream, const void* data,
                                                      std::uint32_t value,
                                                      std::size_t count_words) = 0;
};

// The kernels for `device`: compiled by NVRTC on CUDA. Throws std::runtime_error with the reason
// when that cannot be done.
[[nodiscard]] std::unique_ptr<TestKernels> make_test_kernels(Device& device);

}  // namespace limbo::testing
