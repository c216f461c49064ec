#include "tests/bench/process.h"

#include <cstdlib>
#include <stdexcept>
#include <string_view>

namespace limbo::bench {
namespace {

constexpr std::size_t kScratchWords = 1024;

std::unique_ptr<Device> make_device() {
  const char* choice = std::getenv("LIMBO_DEVICE");
  const bool cuda = choice != nullptr && std::string_view(choice) == "cuda";
  return cuda ? make_cuda_device() : make_simulated_device();
}

Device& plain_device() {
  return device();
}

}  // namespace

MeasuredDevice& device() {
  static auto* made = new MeasuredDevice(make_device());
  return *made;
}

Allocator& allocator() {
  static auto* made = new Allocator(device());
  return *made;
}

SharingService& sharing() {
  static auto* made = new SharingService(&plain_device, &allocator);
  return *made;
}

testing::TestKernels& kernels() {
  static testing::TestKernels* made = [] {
    auto kernels = testing::make_test_kernels(device().inner());
    kernels->prepare(0);
    return kernels.release();
  }();
  return *made;
}

void end_sharing() {
  sharing().end(std::chrono::milliseconds(0));
}

BusyStream::BusyStream()
    : stream_{0, device().create_stream(0)},
      scratch_(device().try_allocate(0, kScratchWords * sizeof(std::uint32_t))),
      passed_(device().create_event(0)) {
  if (scratch_ == nullptr) throw std::runtime_error("no memory on the device");
}

void BusyStream::keep_busy(std::chrono::milliseconds duration) {
  kernels().write_for(stream_, scratch_, 1, kScratchWords, duration);
  device().record_event(stream_, passed_);
}

bool BusyStream::busy() {
  return !device().query_event(0, passed_);
}

void BusyStream::synchronize() {
  device().synchronize_stream(stream_);
}

}  // namespace limbo::bench
