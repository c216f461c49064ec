#include "tests/bench/machine.h"

#include <sys/utsname.h>

#include <fstream>
#include <thread>

#include "tests/bench/process.h"
#include "tests/support/cuda_driver.h"

namespace limbo::bench {
namespace {

std::string cpu_name() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    const std::size_t colon = line.find(": ");
    if (line.starts_with("model name") && colon != std::string::npos) return line.substr(colon + 2);
  }
  return "unknown";
}

void describe_gpu(Machine& machine) {
  machine.gpu = device().name();
#ifdef LIMBO_HAVE_CUDA
  if (machine.gpu != "cuda" || find_driver_symbol("cuDeviceGetName") == nullptr) return;
  char name[128] = "";
  int version = 0;
  CUdevice handle = 0;
  testing::check_cuda("cuDeviceGet", LIMBO_DRIVER_FUNCTION(cuDeviceGet)(&handle, 0));
  testing::check_cuda("cuDeviceGetName", LIMBO_DRIVER_FUNCTION(cuDeviceGetName)(
                                             name, static_cast<int>(sizeof(name)), handle));
  testing::check_cuda("cuDriverGetVersion", LIMBO_DRIVER_FUNCTION(cuDriverGetVersion)(&version));
  machine.gpu = name;
  machine.driver = std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
#endif
}

}  // namespace

Machine this_machine() {
  Machine machine;
  machine.cpu = cpu_name();
  machine.cores = std::thread::hardware_concurrency();
  utsname names{};
  if (uname(&names) == 0) machine.kernel = names.release;
  machine.build = __VERSION__;
#ifdef __OPTIMIZE__
  machine.build += ", optimised";
#else
  machine.build += ", not optimised";
#endif
  (void)device().device_count();  // starts the driver
  describe_gpu(machine);
  return machine;
}

}  // namespace limbo::bench
