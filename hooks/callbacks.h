// torch's registry of free-memory callbacks, in both directions.
//
// Limbo's collector is registered there as "limbo_collect", for allocators that walk the registry
// (torch's own does, also while it takes memory from Limbo for one of its pools). And Limbo's
// allocator, on a miss, runs what others registered, for instance torch's "cuda_ipc_collect".
#pragma once

namespace limbo {

// Registers "limbo_collect", once. The registry does not lock its readers: call it before threads
// allocate, as installation does. False when another copy of this library has registered it.
bool register_collector();

// Whether "limbo_collect" is registered by somebody else: a second copy of this library.
[[nodiscard]] bool foreign_collector_registered();

// Runs every callback of the registry but Limbo's own, which the allocator reaches directly. True
// when one of them says that memory may have been freed. Holds no lock.
bool run_free_memory_callbacks();

}  // namespace limbo
