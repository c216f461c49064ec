#include "tests/support/test_kernels.h"

#include <algorithm>
#include <vector>

#include "allocator/device/sim_device.h"
#include "tests/support/cuda_test_kernels.h"

namespace limbo::testing {
namespace {

class SimTestKernels final : public TestKernels {
 public:
  explicit SimTestKernels(SimDevice& device) : device_(device) {}

  void prepare(int) override {}

  void write_for(StreamRef stream, void* data, std::uint32_t value, std::size_t count_words,
                 std::chrono::milliseconds duration) override {
    device_.enqueue_kernel(stream, duration, data, count_words * sizeof(value), value);
  }

  std::uint64_t count_different(StreamRef stream, const void* data, std::uint32_t value,
                                std::size_t count_words) override {
    std::vector<std::uint32_t> words(count_words);
    device_.copy_to_host(stream, words.data(), data, count_words * sizeof(value));
    return count_words - static_cast<std::uint64_t>(std::count(words.begin(), words.end(), value));
  }

 private:
  SimDevice& device_;
};

}  // namespace

std::unique_ptr<TestKernels> make_test_kernels(Device& device) {
  if (device.name() == "cuda") return make_cuda_test_kernels(device);
  return std::make_unique<SimTestKernels>(as_sim(device));
}

}  // namespace limbo::testing
