// torch's device guard for CUDA on the simulated device: current device and stream per thread.
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/util/Exception.h>

#include <bit>

#include "hooks/current_stream.h"
#include "hooks/process.h"
#include "hooks/sim_tensors.h"

namespace limbo {
namespace {

c10::Device guarded_device(int index) {
  return {c10::DeviceType::CUDA, static_cast<c10::DeviceIndex>(index)};
}

c10::Stream stream_of(c10::Device device, StreamHandle handle) {
  return c10::Stream(c10::Stream::UNSAFE, device, std::bit_cast<c10::StreamId>(handle));
}

class SimulatedGuard final : public c10::impl::DeviceGuardImplInterface {
 public:
  c10::DeviceType type() const override { return c10::DeviceType::CUDA; }

  c10::Device exchangeDevice(c10::Device device) const override {
    check(device);
    return guarded_device(set_simulated_device(device.index()));
  }
  c10::Device getDevice() const override { return guarded_device(simulated_device()); }
  void setDevice(c10::Device device) const override {
    check(device);
    set_simulated_device(device.index());
  }
  void uncheckedSetDevice(c10::Device device) const noexcept override {
    set_simulated_device(device.index());
  }

  c10::Stream getStream(c10::Device device) const override {
    const c10::Device meant = device.has_index() ? device : getDevice();
    return stream_of(meant, simulated_stream(meant.index()));
  }
  c10::Stream getDefaultStream(c10::Device device) const override {
    return stream_of(device.has_index() ? device : getDevice(), nullptr);
  }
  c10::Stream exchangeStream(c10::Stream stream) const override {
    const StreamRef wanted = to_stream_ref(stream);
    return stream_of(stream.device(), set_simulated_stream(wanted));
  }
  void* getStreamNativeHandle(const c10::Stream stream) const override {
    return to_stream_ref(stream).handle;
  }

  // The number of simulated GPUs, 0 where the device cannot be made.
  c10::DeviceIndex deviceCount() const noexcept override {
    try {
      return static_cast<c10::DeviceIndex>(allocator_in_use().device().device_count());
    } catch (...) {
      return 0;
    }
  }

  void synchronizeStream(const c10::Stream& stream) const override {
    allocator_in_use().device().synchronize_stream(to_stream_ref(stream));
  }
  void synchronizeDevice(const c10::DeviceIndex device) const override {
    allocator_in_use().device().synchronize_device(device);
  }

 private:
  static void check(c10::Device device) {
    TORCH_CHECK(device.type() == c10::DeviceType::CUDA && device.index() >= 0,
                "limbo: the simulated device has no ", device);
  }
};

}  // namespace

void install_simulated_guard() {
  static const auto* guard = new SimulatedGuard;
  c10::impl::device_guard_impl_registry[static_cast<std::size_t>(c10::DeviceType::CUDA)].store(
      guard);
}

}  // namespace limbo
