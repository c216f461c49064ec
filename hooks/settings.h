// torch's allocator settings (PYTORCH_CUDA_ALLOC_CONF, PYTORCH_ALLOC_CONF, and what a program sets
// later): what is refused, what Limbo follows, and what it warns about. c10 parses them.
#pragma once

#include <string_view>

#include "allocator/allocator.h"

namespace limbo {

// Throws Error(kBadArgument) when the environment's settings name a `backend` (c10 compares it with
// the allocator's name and fails inside, later), or hold what c10 refuses; Error(kUnknownOption) when
// an option of Limbo's (LIMBO_<NAME>) cannot be read: later it would be met where nobody looks, in a
// queue's thread or at a process's end.
void require_settings_allow();

// Whether the allocator settings `text` ("a:1,b:[2,3]") have `key` at the outer level.
[[nodiscard]] bool settings_name(std::string_view text, std::string_view key);

// How requests are rounded and free memory is cut and kept, as c10 has it at the moment. Segments are
// multiples of 2 MiB, so large ones are rounded up to that; the largest block that is cut is larger
// than they are, so that they are cut.
[[nodiscard]] AllocationPolicy policy_in_settings();

// Lets `allocator` follow the settings: those of now, and those that
// torch._C._accelerator_setAllocatorSettings sets later.
void follow_settings(Allocator& allocator);

// Has c10 tell Limbo when a program changes the settings. Called once, while the library is loaded:
// c10 does not lock the hook that this sets.
void follow_later_settings();

// Warns about those of the settings that have no effect yet, each once in a process. Once Limbo is
// installed, later ones are warned about when they are set.
void warn_about_settings();

}  // namespace limbo
