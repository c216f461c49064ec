// What Python reaches by ctypes: plain C functions.
//
// Every function that returns `int` returns 0, or the number of an error code (allocator/error.h;
// limbo_error_name gives its name). Functions that return a string return null on failure. After a
// failure limbo_last_error_code and limbo_last_error tell what happened in the calling thread.
// Strings are UTF-8, belong to the calling thread, and last until its next call of the same
// function; copy them. No function throws. All are thread-safe. None needs the GIL, and none takes
// it.
//
// In a child that was forked after its parent's first use, what asks about the parent's memory or its
// GPUs fails with forked_child. Versions, options, probes and the making of the allocator answer there
// too; draining and captures have nothing to do, and say 0.
//
// Errors of torch operators (operators.h) travel as RuntimeError instead, whose text begins with
// "limbo[<code name>]: ", for instance "limbo[bad_descriptor]: The message is cut short ...".
#pragma once

#include <stdint.h>

#if defined(__GNUC__)
#define LIMBO_C_API __attribute__((visibility("default")))
#else
#define LIMBO_C_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

// ---- errors and versions ------------------------------------------------------------------------

// The calling thread's last failure: its code and its text ("" and 0 if there was none).
LIMBO_C_API int limbo_last_error_code(void);
LIMBO_C_API const char* limbo_last_error(void);

// "bad_descriptor" for the number of kBadDescriptor; "unknown" for a number that is none.
LIMBO_C_API const char* limbo_error_name(int code);

LIMBO_C_API const char* limbo_version(void);              // Limbo's own, for instance "0.1.0"
LIMBO_C_API const char* limbo_torch_built_for(void);      // torch's minor version: "2.11"
LIMBO_C_API const char* limbo_torch_running_under(void);  // the torch in this process: "2.11.0"

// 0 when this library can serve this process; else wrong_torch, or already_in_use when another copy
// of it is loaded. With such an error the library has registered nothing: no operators, no checks.
LIMBO_C_API int limbo_torch_usable(void);

// ---- the allocator ------------------------------------------------------------------------------

// Makes Limbo the CUDA allocator of this process (install.h). Installed already: nothing, 0.
// Errors: wrong_torch, already_in_use, bad_argument (`backend:` in PYTORCH_CUDA_ALLOC_CONF),
// unknown_option (a variable LIMBO_<OPTION> that cannot be read), device_error.
LIMBO_C_API int limbo_torch_install(void);

// The same with `count` options (limbo_set_option) that hold before; after an error none is changed.
LIMBO_C_API int limbo_torch_enable(const char* const* names, const int64_t* values, int count);

// 1 when Limbo is the CUDA allocator, else 0.
LIMBO_C_API int limbo_torch_installed(void);

// How Python gets the allocator as an object, without an extension module:
//   limbo_torch_make_allocator()
//   a = torch._C._cuda_getAllocator()
//   limbo_torch_restore_allocator()
// Between the two calls Limbo's allocator stands in torch's place; restore puts back what was there
// (nothing to do when Limbo is installed). `a` is complete, and may be given to
// torch.cuda.memory.change_current_allocator or torch.cuda.MemPool. One thread at a time: others
// that make one, or install, wait until it is restored, so call restore in a `finally`, in the same
// thread.
LIMBO_C_API int limbo_torch_make_allocator(void);
LIMBO_C_API int limbo_torch_restore_allocator(void);

// The two functions of stock loading, for torch.cuda.memory.CUDAPluggableAllocator(path,
// "limbo_malloc", "limbo_free"). When torch initialises CUDA (where the program has a logger of API
// usage of its own: at the first allocation) Limbo puts its complete allocator in the wrapper's place.
// A plug-in whose functions call them stays torch's allocator, and gets its memory from Limbo.
// `stream` is a cudaStream_t. They are called by C++ and throw as torch expects.
LIMBO_C_API void* limbo_malloc(intptr_t size_bytes, int device, void* stream);
LIMBO_C_API void limbo_free(void* data, intptr_t size_bytes, int device, void* stream);

// ---- options and numbers ------------------------------------------------------------------------

// Errors: unknown_option (no such option, or a value that it cannot be), already_in_use (somebody has
// read it for good; limbo_options_json says which options are fixed, and when).
LIMBO_C_API int limbo_set_option(const char* name, int64_t value);

// [{"name", "unit", "minimum", "maximum", "default", "value", "meaning"}, ...]
LIMBO_C_API const char* limbo_options_json(void);

// "cuda" or "simulated": the device that this process uses, or would use. Starts nothing; null with
// device_error where there is none.
LIMBO_C_API const char* limbo_device_name(void);

// The names that this process goes by among others: 32 hexadecimal digits.
LIMBO_C_API const char* limbo_incarnation(void);

// Who holds what this process has lent:
// [{"pid", "incarnation", "state": "connected"|"quarantine", "why", "claims", "bytes",
//   "mapped_pieces", "mapped_bytes", "oldest_claim_ms"}, ...]
LIMBO_C_API const char* limbo_holders_json(void);

// {"sharing": {every field of SharingStats}, "devices": [{"device", "limbo_blocks", "limbo_bytes",
//  "held_for_readers_bytes", "allocated_bytes", "active_bytes", "reserved_bytes"}, ...]}
LIMBO_C_API const char* limbo_stats_json(void);

// The GPUs of the device that this process uses, which this starts:
// [{"index", "uuid", "total_bytes", "free_bytes"}, ...], and {"index", "error"} of one that cannot be
// asked. Null with device_error where there is none.
LIMBO_C_API const char* limbo_devices_json(void);

// What lending needs of this machine, each tried (ipc/probes.h); of GPU `device` too, which starts
// it, unless it is negative: [{"name", "works", "seen", "advice"}, ...]
LIMBO_C_API const char* limbo_probes_json(int device);

// Looks at every consumer now and takes back what the dead held whose GPU work has ended (which
// happens by itself a moment later); with `force` 1 also from those in quarantine: the caller vouches
// that none of their GPU work runs any more. How many consumers are done with goes to `*leases`, how
// many claims they had to `*claims` (either may be null). Waits for the background threads.
LIMBO_C_API int limbo_reap(int force, int64_t* leases, int64_t* claims);

// Waits, at most `at_most_ms`, until nothing is in flight and every holder has mapped what it
// holds. `*drained` (may be null) becomes 1 when that was reached, else 0. Does nothing where nothing
// was shared.
LIMBO_C_API int limbo_drain(int64_t at_most_ms, int* drained);

// The same for at most what the option exit_drain_ms says, which becomes what is left of it. For the
// end of a process that may not run `atexit`, where the library does this (children of
// multiprocessing): both together wait no longer than the option says.
LIMBO_C_API int limbo_drain_before_exit(void);

// For whoever captures a CUDA graph, on the thread that does: received tensors of `device` that live
// now stay claimed until the graph that `stream` (a cudaStream_t) is captured into is destroyed.
// `*kept` (may be null) becomes 1, or 0 where the stream is not being captured or nothing was ever
// received. Errors: device_error, bad_argument.
LIMBO_C_API int limbo_keep_for_graph(int device, void* stream, int* kept);

// Around the beginning of a capture of `stream` (a cudaStream_t), and nothing else: what other threads
// and Limbo's own ask and enqueue there waits, instead of ending the capture. Announcing waits, at most
// 100 ms, for what is being asked just now; `*announcement` names it to the withdrawal, which is called
// whether the capture has begun or not. One that is forgotten ends after a second.
LIMBO_C_API int limbo_announce_capture(int device, void* stream, uint64_t* announcement);
LIMBO_C_API int limbo_withdraw_capture(uint64_t announcement);

#ifdef __cplusplus
}
#endif
