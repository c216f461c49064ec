// Making Limbo torch's CUDA allocator.
#pragma once

namespace limbo {

// From now on torch's CUDA memory comes from Limbo. Call it before CUDA memory is used; a CUDA that
// is initialised and has reserved nothing is fine. Installed already: does nothing.
//
// Starts no thread and touches no driver, so that processes forked before the first use are
// processes of their own. Thread-safe, as long as no thread uses CUDA memory meanwhile.
//
// Errors (limbo::Error, nothing has changed): kWrongTorch, kAlreadyInUse (another allocator has
// memory out, and which; or another copy of this library is loaded), kBadArgument (`backend:` in
// PYTORCH_CUDA_ALLOC_CONF), kUnknownOption (a variable LIMBO_<OPTION> that cannot be read).
void install();

// Whether torch's CUDA memory comes from Limbo.
[[nodiscard]] bool installed() noexcept;

// Puts the adapter in the place of torch's wrapper around limbo_malloc and limbo_free themselves, if
// such a wrapper is torch's allocator now. Never waits: does nothing while another thread is changing
// torch's allocator. Errors as install.
void replace_pluggable_wrapper();

// What belongs to an installed allocator beside torch's pointer to it: c10's own table, and warnings
// about settings. Done once; does nothing unless Limbo is installed.
void complete_installation();
[[nodiscard]] bool installation_complete() noexcept;

// Between the two, Limbo's allocator stands in torch's place and is what torch hands to Python
// (`torch._C._cuda_getAllocator`), whatever is used already: see capi.h. `end` puts back what was
// there. Both in one thread; others that make one, or install, wait meanwhile. `end` without `begin`,
// and `begin` or install again before `end`, throw Error(kBadArgument). A process that another thread
// forks meanwhile goes on as if it had ended.
void begin_making_allocator();
void end_making_allocator();

}  // namespace limbo
