#include "tests/support/device_suite.h"

#include <algorithm>
#include <cstdlib>
#include <map>
#include <stdexcept>

namespace limbo::testing {
namespace {

std::unique_ptr<Device> make_device(const std::string& name) {
  if (name == "simulated") {
    // A machine of two, unless the environment says otherwise; it is made at the first call.
    const bool chosen = std::getenv("LIMBO_SIM_DEVICES") != nullptr;
    if (!chosen) setenv("LIMBO_SIM_DEVICES", "2", 1);
    std::unique_ptr<Device> device = make_simulated_device();
    (void)device->device_count();
    if (!chosen) unsetenv("LIMBO_SIM_DEVICES");
    return device;
  }
  if (name == "cuda") return make_cuda_device();
  throw std::invalid_argument("no device is named " + name);
}

}  // namespace

Device& device_named(const std::string& name) {
  // Never destroyed, as the product's own device is.
  static auto* const devices = new std::map<std::string, std::unique_ptr<Device>>;
  std::unique_ptr<Device>& device = (*devices)[name];
  if (device == nullptr) device = make_device(name);
  return *device;
}

TestKernels& kernels_of(const std::string& name) {
  static auto* const all = new std::map<std::string, std::unique_ptr<TestKernels>>;
  std::unique_ptr<TestKernels>& kernels = (*all)[name];
  if (kernels == nullptr) {
    Device& device = device_named(name);
    std::unique_ptr<TestKernels> made = make_test_kernels(device);
    for (int i = 0; i < device.device_count(); ++i) made->prepare(i);
    kernels = std::move(made);
  }
  return *kernels;
}

std::string why_no_device(const std::string& name) {
  if (name != "cuda") return {};
  std::string why;
  if (!cuda_available(&why)) return why;
  return device_named(name).device_count() == 0 ? "no GPU is visible to this process" : "";
}

void DeviceSuite::SetUp() {
  const std::string why = why_no_device(GetParam());
  if (!why.empty()) GTEST_SKIP() << why;
  BalancedTest::SetUp();
}

void DeviceSuite::warm_up() {
  (void)kernels();
  // Opens whatever the driver opens at the first use of each kind of call.
  keep_busy(new_stream(), std::chrono::milliseconds(1));
  device().synchronize_device(0);
}

void DeviceSuite::TearDown() {
  if (IsSkipped()) return;
  device().synchronize_device(0);
  for (const StreamRef stream : streams_) device().destroy_stream(stream);
  for (void* memory : memory_) device().free(0, memory);
  BalancedTest::TearDown();
}

StreamRef DeviceSuite::new_stream() {
  const StreamRef stream{0, device().create_stream(0)};
  streams_.push_back(stream);
  return stream;
}

std::uint32_t* DeviceSuite::new_memory(std::size_t size_bytes) {
  void* memory = device().try_allocate(0, size_bytes);
  if (memory == nullptr) throw std::runtime_error("the device has no room for the test's memory");
  memory_.push_back(memory);
  return static_cast<std::uint32_t*>(memory);
}

void DeviceSuite::give_up(void* memory) {
  memory_.erase(std::find(memory_.begin(), memory_.end(), memory));
  device().free(0, memory);
}

void DeviceSuite::keep_busy(StreamRef stream, std::chrono::milliseconds duration) {
  if (scratch_ == nullptr) scratch_ = new_memory(2 * kMiB);
  kernels().write_for(stream, scratch_, 1, 64, duration);
}

std::vector<std::uint32_t> DeviceSuite::read(const void* data, std::size_t count_words) {
  std::vector<std::uint32_t> words(count_words);
  device().copy_to_host(default_stream(), words.data(), data, count_words * sizeof(words[0]));
  return words;
}

void DeviceSuite::write(void* data, const std::vector<std::uint32_t>& words) {
  device().copy_from_host(default_stream(), data, words.data(), words.size() * sizeof(words[0]));
}

ChildProcess DeviceSuite::new_child() {
  return ChildProcess("device_child", {GetParam()});
}

std::string device_suite_name(const ::testing::TestParamInfo<std::string>& info) {
  return info.param;
}

}  // namespace limbo::testing
