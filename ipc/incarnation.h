// Who this process is, for other processes: 128 random bits for one run of one process, and the
// boot of the machine that it runs on. Pids are for people only: they repeat.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "ipc/layout.h"

namespace limbo {

using BootId = std::array<std::uint8_t, 16>;

// Random, never all zero. Throws kInternal when the kernel has no random numbers.
[[nodiscard]] Incarnation random_incarnation();

// 32 hexadecimal digits.
[[nodiscard]] std::string to_string(const Incarnation& incarnation);

// The kernel's random name for this boot (/proc/sys/kernel/random/boot_id); all zero where there is
// none, on both sides alike. Read once. Throws kNoChannel when it cannot be read just now (no
// descriptors are left).
[[nodiscard]] const BootId& boot_id();

}  // namespace limbo
