#include "hooks/version.h"

#include <ATen/Version.h>

namespace limbo {

std::string torch_built_for() {
  return std::to_string(kTorchMajor) + "." + std::to_string(kTorchMinor);
}

std::string torch_running_under() {
  // The only place where a loaded torch tells its version to C++.
  const std::string config = at::show_config();
  constexpr std::string_view kKey = "TORCH_VERSION=";
  const std::size_t at = config.find(kKey);
  if (at == std::string::npos) return "unknown";
  const std::size_t begin = at + kKey.size();
  return config.substr(begin, config.find_first_of(", \n", begin) - begin);
}

bool same_minor_version(std::string_view running, int major, int minor) {
  const std::string wanted = std::to_string(major) + "." + std::to_string(minor);
  if (!running.starts_with(wanted)) return false;
  // "2.1" is not the start of "2.11".
  return running.size() == wanted.size() || running[wanted.size()] < '0' ||
         running[wanted.size()] > '9';
}

}  // namespace limbo
