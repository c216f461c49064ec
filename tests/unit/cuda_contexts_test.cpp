// Which GPUs the CUDA device uses, and how it waits for one that is full: against a stand-in for
// libcuda that counts.
#ifdef LIMBO_FAKE_DRIVER_DIR

#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "allocator/device/device.h"
#include "tests/support/child_process.h"
#include "tests/support/cuda_driver.h"

namespace limbo::testing {
namespace {

int counted(const char* name) {
  return driver_function<int (*)()>(name)();
}

ChildOptions with_gpus(int count) {
  return {
      {{"LD_LIBRARY_PATH", LIMBO_FAKE_DRIVER_DIR}, {"FAKE_CUDA_DEVICES", std::to_string(count)}}};
}

// ---- contexts -----------------------------------------------------------------------------------

LIMBO_CHILD_ROLE(wait_for_all_gpus) {
  const std::unique_ptr<Device> device = make_cuda_device();
  (void)device->memory_info(2);
  for (int index = 0; index < device->device_count(); ++index) device->synchronize_device(index);
  child.send("contexts " + std::to_string(counted("fakeCudaContexts")));
  child.send("waits " + std::to_string(counted("fakeCudaFrees")));
  return 0;
}

TEST(CudaContexts, WaitingForADeviceThatNobodyUsesMakesNoContext) {
  ChildOptions options = with_gpus(8);
  options.environment.emplace_back("FAKE_CUDA_REFUSE", "5");
  ChildProcess child("wait_for_all_gpus", {}, options);
  child.expect("contexts 4");
  child.expect("waits 1");
  child.finish();
}

}  // namespace
}  // namespace limbo::testing

#endif
