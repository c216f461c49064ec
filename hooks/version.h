// Versions: Limbo's own, and the one minor version of torch that this library is built for.
//
// The virtual functions of torch's allocator interface stand in another order in nearly every minor
// version, and a library built for another one would call the wrong one of them without a word.
#pragma once

#include <torch/headeronly/version.h>

#include <string>
#include <string_view>

namespace limbo {

inline constexpr std::string_view kVersion = "0.1.0";

inline constexpr int kTorchMajor = TORCH_VERSION_MAJOR;
inline constexpr int kTorchMinor = TORCH_VERSION_MINOR;

// "2.11": what this library was compiled against.
[[nodiscard]] std::string torch_built_for();

// "2.11.0": what is loaded in this process.
[[nodiscard]] std::string torch_running_under();

// Whether `running`, for instance "2.11.1+cu130", is of the minor version `major`.`minor`.
[[nodiscard]] bool same_minor_version(std::string_view running, int major, int minor);

}  // namespace limbo
