// One suite over every kind of device: what the simulated device promises is what the hardware
// does.
//
// A test file that runs the suite includes the device_suite_*.h with the tests and instantiates
// DeviceSuite for its device. Where there is no GPU the CUDA tests are skipped by name, with the
// reason.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "allocator/device/device.h"
#include "allocator/error.h"
#include "tests/support/balance.h"
#include "tests/support/child_process.h"
#include "tests/support/eventually.h"
#include "tests/support/sizes.h"
#include "tests/support/test_graphs.h"
#include "tests/support/test_kernels.h"

namespace limbo::testing {

// The device of that name ("simulated", "cuda"), made once per process. Throws what making it does.
[[nodiscard]] Device& device_named(const std::string& name);
// Its kernels, loaded on every device. Made once per process.
[[nodiscard]] TestKernels& kernels_of(const std::string& name);
// Why the tests of that device cannot run here; empty when they can.
[[nodiscard]] std::string why_no_device(const std::string& name);

// The parameter is the device's name.
class DeviceSuite : public BalancedTest, public ::testing::WithParamInterface<std::string> {
 protected:
  void SetUp() override;
  void TearDown() override;
  void warm_up() override;

  [[nodiscard]] Device& device() { return device_named(GetParam()); }
  [[nodiscard]] TestKernels& kernels() { return kernels_of(GetParam()); }
  [[nodiscard]] StreamRef default_stream() { return {0, nullptr}; }

  // A stream, or memory, of device 0 that is gone at the test's end.
  [[nodiscard]] StreamRef new_stream();
  [[nodiscard]] std::uint32_t* new_memory(std::size_t size_bytes);
  void give_up(void* memory);  // frees it now

  // Makes `stream` busy for about `duration`, on memory of the test's own.
  void keep_busy(StreamRef stream, std::chrono::milliseconds duration);

  [[nodiscard]] std::vector<std::uint32_t> read(const void* data, std::size_t count_words);
  void write(void* data, const std::vector<std::uint32_t>& words);

  // A child that serves `device_child`, on the same kind of device.
  [[nodiscard]] ChildProcess new_child();

 private:
  std::vector<StreamRef> streams_;
  std::vector<void*> memory_;
  std::uint32_t* scratch_ = nullptr;
};

// The code of the limbo::Error that `action` throws; nothing when it throws none.
template <typename Action>
[[nodiscard]] std::optional<ErrorCode> error_of(Action action) {
  try {
    action();
  } catch (const Error& error) {
    return error.code();
  }
  return std::nullopt;
}

[[nodiscard]] std::string device_suite_name(const ::testing::TestParamInfo<std::string>& info);

}  // namespace limbo::testing
