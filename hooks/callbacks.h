// torch's registry of free-memory callbacks, in both directions.
//
// Limbo's collector is registered there as "limbo_collect", for allocators that walk the registry
// (torch's own does, also while it takes memory from Limbo for one of its pools). And Limbo's
// allocator, on a miss, runs what others registered, for instance torch's "cuda_ipc_collect".
#pragma once

namespace limbo {

// Registers "limbo_collect", once. The registry does not lock its readers, so this happens while the
// library is loaded, before any allocator of Limbo's is in place. False when it is registered
// already: by another copy of this library.
bool register_collector();

// Runs every callback of the registry but Limbo's own, since the allocator asks its lender to
// collect before it runs callbacks. True when one of them says that memory may have been freed.
// Holds no lock.
bool run_free_memory_callbacks();

}  // namespace limbo
