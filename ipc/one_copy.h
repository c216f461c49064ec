// One copy of the library per process.
//
// Two copies would each have their own allocator, locks and life line over one driver. Nothing keeps
// a program from loading a second one (another path, another name, RTLD_LOCAL), so every copy carries
// a mark, and whichever was loaded later refuses its first use.
#pragma once

namespace limbo {

// Throws kAlreadyInUse when a copy of the library was loaded before this one. Not exported: each copy
// must ask for itself.
__attribute__((visibility("hidden"))) void check_only_copy();

}  // namespace limbo
