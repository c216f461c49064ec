// Waiting until a GPU is idle.
//
// cuCtxSynchronize ends every capture in the context, whatever the thread's capture mode. To give
// memory back the driver waits for the device as well, and lets captures of every mode be: so some is
// taken and given back (all measured; cuMemUnmap, cuEventDestroy and cuStreamDestroy do not wait). It is
// device memory, or on a full device a page of host memory, registered and unregistered. Neither waited
// for another GPU of the process, one that was busy (measured). (Where GPUs use the host's page tables,
// which none beside an x86-64 processor does, there would be nothing to unmap and maybe nothing to wait
// for.)
#pragma once

#ifdef LIMBO_HAVE_CUDA

#include "allocator/device/driver_entry_points.h"

namespace limbo {

// Waits until what this process had queued on `device`, whose call scope must be open, is done. Threads
// may wait at once. Throws kDeviceError where the context is lost, and where neither kind of memory can
// be had or the driver does not take it back: then the device may not have been waited for.
void wait_until_idle(const DriverEntryPoints& driver, int device);

}  // namespace limbo

#endif
