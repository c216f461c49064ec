// This process's allocator and sharing, as hooks/ reaches them: every use goes through here, so
// that the first one is noticed. Before it nothing is made: loading and installing touch no driver
// and start no thread, and a process forked until then is one of its own.
#pragma once

#include "allocator/allocator.h"
#include "ipc/sharing.h"

namespace limbo {

// Throws Error(kForkedChild) in a process that was forked after its parent's first use, and
// Error(kDeviceError) where there is no device.
[[nodiscard]] Allocator& allocator_in_use();
[[nodiscard]] Sharing& sharing_in_use();

// Whether one of the two was ever had in this process (or in its parent before the fork).
[[nodiscard]] bool in_use() noexcept;

// Whether this process was forked after its parent's first use: it owns nothing of its parent's,
// and what it drops is dropped without a word to anybody.
[[nodiscard]] bool in_forked_child() noexcept;

// Whether the process's device is the simulated one. Decided by LIMBO_DEVICE alone; makes nothing.
[[nodiscard]] bool simulated() noexcept;

}  // namespace limbo
