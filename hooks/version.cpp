#include "hooks/version.h"

#include <cstdint>

// Of torch's stable C interface: major, minor and patch in the highest three bytes. Weak, so that a
// torch without it is told apart instead of failing to load. (at::show_config() has the version as
// text, but starts the driver to find out about GPUs; loading a library must not.)
extern "C" __attribute__((weak)) std::uint64_t aoti_torch_abi_version();

namespace limbo {

std::string torch_built_for() {
  return std::to_string(kTorchMajor) + "." + std::to_string(kTorchMinor);
}

std::string torch_running_under() {
  if (aoti_torch_abi_version == nullptr) return "unknown";
  const std::uint64_t version = aoti_torch_abi_version();
  const auto byte = [&](unsigned shift) { return std::to_string((version >> shift) & 0xff); };
  return byte(56) + "." + byte(48) + "." + byte(40);
}

bool same_minor_version(std::string_view running, int major, int minor) {
  const std::string wanted = std::to_string(major) + "." + std::to_string(minor);
  if (!running.starts_with(wanted)) return false;
  // "2.1" is not the start of "2.11".
  return running.size() == wanted.size() || running[wanted.size()] < '0' ||
         running[wanted.size()] > '9';
}

}  // namespace limbo
