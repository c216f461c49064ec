// What the tests of hooks/ share. They run on the simulated device, which is chosen by the
// environment before the library is loaded (ctest sets LIMBO_DEVICE=simulated).
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/util/Exception.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <functional>
#include <string>
#include <utility>

#include "hooks/process.h"

namespace limbo::testing {

// The number that counts all pools, in torch's statistics.
inline constexpr auto kAll = static_cast<std::size_t>(c10::CachingAllocator::StatType::AGGREGATE);

// Skips nothing: a run on another device would test something else, so it fails.
class TorchTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(simulated()) << "Run it with LIMBO_DEVICE=simulated in the environment.";
    before_ = c10::cuda::CUDACachingAllocator::allocator.load();
  }
  // Every test meets torch's own allocator in place again.
  void TearDown() override {
    if (before_ != nullptr) c10::cuda::CUDACachingAllocator::allocator.store(before_);
  }

 private:
  c10::cuda::CUDACachingAllocator::CUDAAllocator* before_ = nullptr;
};

// The text of the c10::Error that `call` throws; a text that says so when there is none.
template <typename Call>
std::string torch_error_of(Call&& call) {
  try {
    std::forward<Call>(call)();
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  }
  return "nothing was thrown";
}

inline void expect_starts_with(const std::string& text, const std::string& start) {
  EXPECT_EQ(text.substr(0, start.size()), start) << text;
}

// What `in_child` says, in a fork child. It is ended where it hangs; false where it throws.
[[nodiscard]] bool holds_in_fork_child(const std::function<bool()>& in_child);

// A tensor of device type cuda over the simulated GPU's memory.
[[nodiscard]] at::Tensor sim_empty(at::IntArrayRef sizes,
                                   c10::ScalarType dtype = c10::ScalarType::Float);
[[nodiscard]] at::Tensor sim_arange(std::int64_t count);
[[nodiscard]] at::Tensor sim_read(const at::Tensor& tensor);
void sim_write(const at::Tensor& tensor, const at::Tensor& values);

}  // namespace limbo::testing
