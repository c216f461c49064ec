// NVIDIA's driver, found at run time.
//
// Nothing here links libcuda: without a driver neither a library nor a program that needs it would
// start. The functions are looked up by their versioned names (cuda.h's macros spell them), so one
// binary runs on every driver that has them.
#pragma once

#include <cstddef>
#include <string>

#include "allocator/error.h"

#ifdef LIMBO_HAVE_CUDA
// The legacy default stream is meant wherever a stream is null, however the library is compiled.
#undef CUDA_API_PER_THREAD_DEFAULT_STREAM
#include <cuda.h>
#endif

namespace limbo {

// Whether a driver and a GPU seem to be there, told by the library's and the device files'
// presence: initialising the driver would spoil every later fork. False: `why` says what is
// missing.
[[nodiscard]] bool driver_present(std::string& why);

#ifdef LIMBO_HAVE_CUDA

// What Limbo needs: a driver without one of these is refused.
#define LIMBO_REQUIRED_DRIVER_ENTRIES(X) \
  X(cuInit)                              \
  X(cuDriverGetVersion)                  \
  X(cuGetErrorName)                      \
  X(cuGetErrorString)                    \
  X(cuDeviceGetCount)                    \
  X(cuDeviceGet)                         \
  X(cuDeviceGetUuid)                     \
  X(cuDeviceGetAttribute)                \
  X(cuDeviceTotalMem)                    \
  X(cuDevicePrimaryCtxRetain)            \
  X(cuDevicePrimaryCtxGetState)          \
  X(cuCtxGetCurrent)                     \
  X(cuCtxGetDevice)                      \
  X(cuCtxPushCurrent)                    \
  X(cuCtxPopCurrent)                     \
  X(cuThreadExchangeStreamCaptureMode)   \
  X(cuMemGetInfo)                        \
  X(cuMemAlloc)                          \
  X(cuMemFree)                           \
  X(cuMemGetAddressRange)                \
  X(cuIpcGetMemHandle)                   \
  X(cuIpcOpenMemHandle)                  \
  X(cuIpcCloseMemHandle)                 \
  X(cuMemHostRegister)                   \
  X(cuMemHostUnregister)                 \
  X(cuMemHostGetDevicePointer)           \
  X(cuMemsetD32Async)                    \
  X(cuMemcpyAsync)                       \
  X(cuStreamCreate)                      \
  X(cuStreamDestroy)                     \
  X(cuStreamSynchronize)                 \
  X(cuStreamQuery)                       \
  X(cuStreamIsCapturing)                 \
  X(cuStreamWaitEvent)                   \
  X(cuEventCreate)                       \
  X(cuEventDestroy)                      \
  X(cuEventRecord)                       \
  X(cuEventQuery)

// What lending needs besides (drivers from CUDA 12 on): without them nothing is lent or received.
#define LIMBO_OPTIONAL_DRIVER_ENTRIES(X) \
  X(cuStreamGetId)                       \
  X(cuStreamBatchMemOp)                  \
  X(cuStreamWaitValue64)                 \
  X(cuUserObjectCreate)                  \
  X(cuUserObjectRelease)                 \
  X(cuGraphRetainUserObject)

// Declared here because the versions of cuda.h map its plain name to different functions.
using StreamCaptureInfoFunction = CUresult (*)(CUstream stream, CUstreamCaptureStatus* status,
                                               cuuint64_t* id, CUgraph* graph,
                                               const CUgraphNode** dependencies,
                                               std::size_t* dependency_count);

struct DriverEntryPoints {
#define LIMBO_DECLARE_ENTRY(name) decltype(&::name) name = nullptr;
  LIMBO_REQUIRED_DRIVER_ENTRIES(LIMBO_DECLARE_ENTRY)
  LIMBO_OPTIONAL_DRIVER_ENTRIES(LIMBO_DECLARE_ENTRY)
#undef LIMBO_DECLARE_ENTRY
  // Optional too; the driver's name. NOLINTNEXTLINE(readability-identifier-naming)
  StreamCaptureInfoFunction cuStreamGetCaptureInfo_v2 = nullptr;
};

// The driver's functions; cuInit has not been called. Null when there is no driver or it lacks a
// required function: `why` says which. Loaded once, never unloaded.
[[nodiscard]] const DriverEntryPoints* driver_entry_points(std::string& why);

// Another function of the driver by its versioned name ("cuLaunchKernel"); null if there is none.
[[nodiscard]] void* find_driver_symbol(const char* name) noexcept;

// "cuMemAlloc: CUDA_ERROR_ILLEGAL_ADDRESS (an illegal memory access was encountered)".
[[nodiscard]] std::string describe_driver_error(const DriverEntryPoints& driver, const char* call,
                                                CUresult result);

// Whether a context that has answered with this is lost for good.
[[nodiscard]] bool is_sticky(CUresult result) noexcept;

// What the driver refused, for whoever has to know with which answer.
class DriverError final : public Error {
 public:
  DriverError(const std::string& happened, CUresult result)
      : Error(ErrorCode::kDeviceError, happened), result_(result) {}

  [[nodiscard]] CUresult result() const noexcept { return result_; }

 private:
  CUresult result_;
};

// Throws DriverError, of kDeviceError, unless `result` is CUDA_SUCCESS.
void check_driver(const DriverEntryPoints& driver, const char* call, CUresult result);

#endif

}  // namespace limbo
