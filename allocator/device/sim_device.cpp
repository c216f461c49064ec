#include "allocator/device/sim_device.h"

#include "allocator/device/sim_client.h"
#include "allocator/error.h"

namespace limbo {

SimDevice& as_sim(Device& device) {
  if (auto* const simulated = dynamic_cast<SimDevice*>(&device)) return *simulated;
  throw Error(ErrorCode::kBadArgument,
              "The device is \"" + std::string(device.name()) + "\", not a simulated one.",
              "Set LIMBO_DEVICE=simulated.");
}

std::unique_ptr<Device> make_simulated_device() {
  return std::make_unique<sim::Client>();
}

}  // namespace limbo
