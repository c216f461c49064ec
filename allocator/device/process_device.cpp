#include <cstdlib>

#include "allocator/device/device.h"
#include "allocator/error.h"

namespace limbo {
namespace {

std::unique_ptr<Device> make_chosen_device() {
  const char* variable = std::getenv("LIMBO_DEVICE");
  const std::string_view choice = variable == nullptr || *variable == '\0' ? "auto" : variable;
  if (choice == "simulated") return make_simulated_device();
  if (choice == "cuda") return make_cuda_device();
  if (choice != "auto") {
    throw Error(ErrorCode::kUnknownOption,
                "LIMBO_DEVICE is \"" + std::string(choice) + "\", which names no kind of device.",
                "Use auto, cuda or simulated.");
  }
  std::string why;
  if (!cuda_available(&why)) {
    throw Error(ErrorCode::kDeviceError, "There is no CUDA device: " + why + ".",
                "LIMBO_DEVICE=simulated works without one.");
  }
  return make_cuda_device();
}

}  // namespace

Device& process_device() {
  // Never destroyed: blocks are freed and claims released until the very end of the process.
  static Device* const device = make_chosen_device().release();
  return *device;
}

}  // namespace limbo
