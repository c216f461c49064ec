// What installing over an initialised allocator leaves alone: CUDA, Limbo's own start, and the
// processes that are forked afterwards. And where the settings' memory fraction is set then.
#include <c10/core/AllocatorConfig.h>
#include <c10/cuda/CUDAFunctions.h>
#include <dlfcn.h>
#include <torch/csrc/cuda/CUDAPluggableAllocator.h>

#include <atomic>
#include <memory>
#include <string>

#include "allocator/error.h"
#include "hooks/adapter.h"
#include "hooks/capi.h"
#include "hooks/install.h"
#include "tests/support/child_process.h"
#include "tests/support/sizes.h"
#include "tests/unit_torch/torch_support.h"

namespace {
std::atomic<int> counts_of_devices{0};
}  // namespace

// torch's question how many GPUs there are, which starts the driver. It comes here first: symbols of
// the executable go before those of libraries.
extern "C" __attribute__((visibility("default"))) cudaError_t cudaGetDeviceCount(int* count) {
  ++counts_of_devices;
  using Function = cudaError_t (*)(int*);
  static const auto real = reinterpret_cast<Function>(::dlsym(RTLD_NEXT, "cudaGetDeviceCount"));
  return real(count);
}

namespace limbo::testing {
namespace {

namespace torch_cuda = c10::cuda::CUDACachingAllocator;
namespace pluggable = torch::cuda::CUDAPluggableAllocator;

class Initialization : public TorchTest {};

using AllocateFunction = void*(std::size_t, int, cudaStream_t);

// As Python makes it of two addresses: initialised from the start.
std::shared_ptr<pluggable::CUDAPluggableAllocator> wrapper_of_python(AllocateFunction* allocate) {
  auto made = std::make_shared<pluggable::CUDAPluggableAllocator>(
      allocate, reinterpret_cast<void (*)(void*, std::size_t, int, cudaStream_t)>(&limbo_free));
  made->init(1);
  return made;
}
AllocateFunction* stock_function() {
  return reinterpret_cast<AllocateFunction*>(&limbo_malloc);
}

// Half of the GPU can be had, and no more.
bool half_can_be_had() {
  const std::size_t half = adapter().getMemoryInfo(0).second / 2;
  void* data = torch_cuda::raw_alloc(half - 4 * kMiB);
  bool refused = false;
  try {
    torch_cuda::raw_delete(torch_cuda::raw_alloc(16 * kMiB));
  } catch (const c10::OutOfMemoryError&) {
    refused = true;
  }
  torch_cuda::raw_delete(data);
  adapter().emptyCache({0, 0});
  return data != nullptr && refused && adapter().getMemoryFraction(0) == 0.5;
}

LIMBO_CHILD_ROLE(install_over_the_wrapper_of_python) {
  pluggable::changeCurrentAllocator(wrapper_of_python(stock_function()));
  install();
  child.send(installed() && adapter().initialized() && installation_complete() ? "installed"
                                                                               : "not");
  child.send(counts_of_devices == 0 ? "no driver" : "driver started");
  child.send(in_use() ? "in use" : "not in use");
  child.send(holds_in_fork_child(half_can_be_had) ? "half" : "not half");
  child.send(half_can_be_had() ? "half" : "not half");
  return 0;
}

TEST_F(Initialization, InstallingOverTheWrapperOfPythonStartsNothing) {
  ChildOptions options;
  options.environment.emplace_back("PYTORCH_CUDA_ALLOC_CONF", "per_process_memory_fraction:0.5");
  ChildProcess child("install_over_the_wrapper_of_python", {}, options);
  child.expect("installed");
  child.expect("no driver");
  child.expect("not in use");
  child.expect("half");
  child.expect("half");
  child.finish();
}

// The control: what a start is noticed by.
LIMBO_CHILD_ROLE(count_devices) {
  (void)c10::cuda::device_count();
  child.send(std::to_string(counts_of_devices));
  return 0;
}

TEST_F(Initialization, AQuestionForDevicesIsNoticed) {
  ChildProcess child("count_devices");
  child.expect("1");
  child.finish();
}

LIMBO_CHILD_ROLE(install_over_another_plug_in_of_python) {
  const auto other =
      wrapper_of_python(+[](std::size_t, int, cudaStream_t) -> void* { return nullptr; });
  pluggable::changeCurrentAllocator(other);
  child.send(std::to_string(limbo_torch_install()));
  child.send(torch_cuda::get() == other.get() ? "in place" : "replaced");
  child.send(counts_of_devices == 0 ? "no driver" : "driver started");
  return 0;
}

TEST_F(Initialization, AnotherPlugInOfPythonIsRefusedWithoutAStart) {
  ChildProcess child("install_over_another_plug_in_of_python");
  child.expect(std::to_string(static_cast<int>(ErrorCode::kAlreadyInUse)));
  child.expect("in place");
  child.expect("no driver");
  child.finish();
}

LIMBO_CHILD_ROLE(settle_fractions) {
  const auto fraction = [] { return std::to_string(adapter().getMemoryFraction(0)).substr(0, 4); };
  install();
  c10::CachingAllocator::setAllocatorSettings("per_process_memory_fraction:0.5");
  torch_cuda::init(1);
  child.send(in_use() ? "in use" : "not in use");
  // As in torch's own allocator, it is settled when that is initialised.
  c10::CachingAllocator::setAllocatorSettings("per_process_memory_fraction:0.25");
  child.send(half_can_be_had() ? "half" : "not half");
  child.send(fraction());
  torch_cuda::init(1);
  child.send(fraction());
  c10::CachingAllocator::setAllocatorSettings("per_process_memory_fraction:1.0");
  adapter().setMemoryFraction(0.75, 0);
  child.send(fraction());
  return 0;
}

TEST_F(Initialization, TheSettingsFractionIsThatOfTheTimeOfIt) {
  ChildProcess child("settle_fractions");
  child.expect("not in use");
  child.expect("half");
  child.expect("0.50");
  child.expect("0.25");
  child.expect("0.75");
  child.finish();
}

}  // namespace
}  // namespace limbo::testing
