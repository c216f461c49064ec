// A stand-in for libcuda.so.1 that checks how it is called. It does no work but to write words of host
// memory, at once.
//
// Every call that needs it must come with a primary context current and in relaxed capture mode,
// with the flags that Limbo promises; anything else is answered by an error. FAKE_CUDA_DEVICES is
// the number of GPUs (default 1). With FAKE_CUDA_CAPTURING every stream is being captured.
// FAKE_CUDA_FAIL names a function that fails, or "all" for every one that is not about contexts, or
// "contexts" for those that are: with the error of FAKE_CUDA_FAIL_WITH's number, or else with
// CUDA_ERROR_LAUNCH_FAILED. FAKE_CUDA_REFUSE is the index of a GPU on which no context can be made.
#define __CUDA_API_VERSION_INTERNAL
#undef CUDA_API_PER_THREAD_DEFAULT_STREAM
#include <cuda.h>
#include <sched.h>

#include <array>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <set>
#include <string_view>
#include <vector>

namespace {

// A device's number is kFirstDevice and its index; its primary context has the same. kOtherContext is
// one that somebody made besides, of whatever device fakeCudaOtherContextIsOf named last.
constexpr int kFirstDevice = 100;
constexpr std::uintptr_t kOtherContext = 999;

bool driver_has_ended = false;
void end_driver() {
  driver_has_ended = true;
}

// So far beyond where the host sees it a device sees host memory.
constexpr CUdeviceptr kSeenBeyond = CUdeviceptr{1} << 62;

// Contexts and the like are never dereferenced: numbers do.
template <typename Handle>
Handle named(std::uintptr_t number) {
  return reinterpret_cast<Handle>(number);
}

struct UserObject {
  void* data = nullptr;
  CUhostFn destructor = nullptr;
};
std::vector<UserObject*> kept_by_graph;

void destroy(UserObject* object) {
  object->destructor(object->data);
  delete object;
}

thread_local std::vector<CUcontext> contexts;
thread_local CUstreamCaptureMode capture_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
std::atomic<int> retains{0};
std::array<std::atomic<bool>, 16> primary_is_there{};  // by device
std::atomic<int> device_of_other_context{0};
std::atomic<int> device_questions{0};
std::atomic<int> pushes{0};
std::atomic<int> context_synchronizations{0};
std::atomic<std::uintptr_t> next_address{0x7f00'0000'0000};

// The memory that was allocated, of all devices, and whether that is all there is.
std::mutex memory_mutex;
std::set<CUdeviceptr> allocated;
bool full = false;
std::atomic<int> frees{0};

std::mutex registered_mutex;
std::map<void*, unsigned> registered;  // host memory, by its beginning: with which flags
std::atomic<void*> registered_last{nullptr};
std::atomic<int> unregistrations{0};
std::atomic<int> unregistering{0};
std::atomic<int> unregister_together{0};

int devices() {
  const char* text = std::getenv("FAKE_CUDA_DEVICES");
  return text != nullptr ? std::atoi(text) : 1;
}

CUresult told(const char* name, std::string_view kind) {
  const char* failing = std::getenv("FAKE_CUDA_FAIL");
  const bool fails = failing != nullptr && (failing == kind || std::string_view(failing) == name);
  if (!fails) return CUDA_SUCCESS;
  const char* number = std::getenv("FAKE_CUDA_FAIL_WITH");
  return number != nullptr ? static_cast<CUresult>(std::atoi(number)) : CUDA_ERROR_LAUNCH_FAILED;
}

// What a call about contexts meets.
CUresult met_outside(const char* name) {
  return told(name, "contexts");
}

// What a call meets that needs a context.
CUresult met(const char* name) {
  if (contexts.empty()) return CUDA_ERROR_INVALID_CONTEXT;
  if (capture_mode != CU_STREAM_CAPTURE_MODE_RELAXED) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  return told(name, "all");
}

CUresult met(const char* name, bool as_promised) {
  const CUresult result = met(name);
  return result == CUDA_SUCCESS && !as_promised ? CUDA_ERROR_INVALID_VALUE : result;
}

}  // namespace

extern "C" {

// ---- for tests ----------------------------------------------------------------------------------

int fakeCudaDepth() {
  return static_cast<int>(contexts.size());
}
int fakeCudaCaptureMode() {
  return static_cast<int>(capture_mode);
}
int fakeCudaRetains() {
  return retains;
}
int fakeCudaDestroyGraph() {
  for (UserObject* object : kept_by_graph) destroy(object);
  kept_by_graph.clear();
  return 0;
}
// The devices that have a primary context, a bit each.
int fakeCudaContexts() {
  int mask = 0;
  for (std::size_t i = 0; i < primary_is_there.size(); ++i)
    mask |= primary_is_there[i] ? 1 << i : 0;
  return mask;
}
int fakeCudaContextSynchronizations() {
  return context_synchronizations;
}
// How often memory was freed, and how often host memory unregistered: each waits for the device.
int fakeCudaFrees() {
  return frees;
}
int fakeCudaUnregistrations() {
  return unregistrations;
}
// From now on none ends before so many have begun.
int fakeCudaUnregisterTogether(int count) {
  unregistering = 0;
  unregister_together = count;
  return 0;
}
// How many pieces of memory are allocated and registered.
int fakeCudaAllocated() {
  const std::lock_guard lock(memory_mutex);
  return static_cast<int>(allocated.size());
}
int fakeCudaRegistered() {
  const std::lock_guard lock(registered_mutex);
  return static_cast<int>(registered.size());
}
// What was last to be registered since this was last asked.
void* fakeCudaRegisteredLast() {
  return registered_last.exchange(nullptr);
}
// Whether the devices are full, and stay so whatever is freed: others are quicker.
int fakeCudaIsFull(int yes) {
  const std::lock_guard lock(memory_mutex);
  full = yes != 0;
  return 0;
}
// Whether a handler has run that the driver registers for the process's end.
int fakeCudaHasEnded() {
  return driver_has_ended ? 1 : 0;
}
int fakeCudaPushes() {
  return pushes;
}
int fakeCudaDeviceQuestions() {
  return device_questions;
}
// Makes a context current that is no device's primary one, and says whose it is.
int fakeCudaOtherContextIsOf(int device) {
  device_of_other_context = device;
  if (contexts.empty() || contexts.back() != named<CUcontext>(kOtherContext)) {
    contexts.push_back(named<CUcontext>(kOtherContext));
  }
  return 0;
}

// ---- devices and contexts -----------------------------------------------------------------------

CUresult cuInit(unsigned) {
  if (devices() == 0) return CUDA_ERROR_NO_DEVICE;
  std::atexit(end_driver);
  return CUDA_SUCCESS;
}
CUresult cuDriverGetVersion(int* version) {
  *version = CUDA_VERSION;
  return CUDA_SUCCESS;
}
CUresult cuGetErrorName(CUresult, const char** name) {
  *name = "CUDA_ERROR_OF_THE_FAKE";
  return CUDA_SUCCESS;
}
CUresult cuGetErrorString(CUresult result, const char** text) {
  *text = result == CUDA_ERROR_LAUNCH_FAILED ? "it was told to fail" : "it was called wrongly";
  return CUDA_SUCCESS;
}
CUresult cuDeviceGetCount(int* count) {
  *count = devices();
  return CUDA_SUCCESS;
}
CUresult cuDeviceGet(CUdevice* device, int ordinal) {
  *device = ordinal + kFirstDevice;
  return CUDA_SUCCESS;
}
CUresult cuDeviceGetUuid_v2(CUuuid* uuid, CUdevice device) {
  std::memset(uuid, device, sizeof(*uuid));
  return CUDA_SUCCESS;
}
CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute, CUdevice) {
  *value = 1;
  return CUDA_SUCCESS;
}
CUresult cuDeviceTotalMem_v2(size_t* bytes, CUdevice) {
  *bytes = 2 << 20;
  return CUDA_SUCCESS;
}
CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice device) {
  const CUresult result = met_outside("cuDevicePrimaryCtxRetain");
  if (result != CUDA_SUCCESS) return result;
  const char* refused = std::getenv("FAKE_CUDA_REFUSE");
  if (refused != nullptr && std::atoi(refused) == device - kFirstDevice) {
    return CUDA_ERROR_DEVICE_UNAVAILABLE;
  }
  ++retains;
  std::atexit(end_driver);  // where the real one does it is not known
  primary_is_there[static_cast<std::size_t>(device - kFirstDevice)] = true;
  *context = named<CUcontext>(static_cast<std::uintptr_t>(device));
  return CUDA_SUCCESS;
}
CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned* flags, int* active) {
  *flags = 0;
  *active = primary_is_there[static_cast<std::size_t>(device - kFirstDevice)] ? 1 : 0;
  return met_outside("cuDevicePrimaryCtxGetState");
}
CUresult cuCtxGetCurrent(CUcontext* context) {
  *context = contexts.empty() ? nullptr : contexts.back();
  return met_outside("cuCtxGetCurrent");
}
CUresult cuCtxGetDevice(CUdevice* device) {
  ++device_questions;
  if (contexts.empty()) return CUDA_ERROR_INVALID_CONTEXT;
  const auto number = reinterpret_cast<std::uintptr_t>(contexts.back());
  *device = number == kOtherContext ? kFirstDevice + device_of_other_context
                                    : static_cast<CUdevice>(number);
  return CUDA_SUCCESS;
}
CUresult cuCtxPushCurrent_v2(CUcontext context) {
  const CUresult result = met_outside("cuCtxPushCurrent");
  if (result != CUDA_SUCCESS) return result;
  ++pushes;
  contexts.push_back(context);
  return CUDA_SUCCESS;
}
CUresult cuCtxPopCurrent_v2(CUcontext* context) {
  if (contexts.empty()) return CUDA_ERROR_INVALID_CONTEXT;
  *context = contexts.back();
  contexts.pop_back();
  return CUDA_SUCCESS;
}
CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode* mode) {
  const CUresult result = met_outside("cuThreadExchangeStreamCaptureMode");
  if (result != CUDA_SUCCESS) return result;
  std::swap(*mode, capture_mode);
  return CUDA_SUCCESS;
}
CUresult cuCtxSynchronize() {
  ++context_synchronizations;
  return met("cuCtxSynchronize");
}

// ---- memory -------------------------------------------------------------------------------------

CUresult cuMemGetInfo_v2(size_t* free_bytes, size_t* total_bytes) {
  *free_bytes = 1 << 20;
  *total_bytes = 2 << 20;
  return met("cuMemGetInfo");
}
CUresult cuMemAlloc_v2(CUdeviceptr* base, size_t size) {
  if (size > (size_t{1} << 40)) return CUDA_ERROR_OUT_OF_MEMORY;
  const std::lock_guard lock(memory_mutex);
  if (full) return CUDA_ERROR_OUT_OF_MEMORY;
  const CUresult result = met("cuMemAlloc");
  if (result != CUDA_SUCCESS) return result;
  *base = next_address.fetch_add((size + 511) / 512 * 512);
  allocated.insert(*base);
  return CUDA_SUCCESS;
}
CUresult cuMemFree_v2(CUdeviceptr base) {
  const CUresult result = met("cuMemFree");
  if (result != CUDA_SUCCESS) return result;
  ++frees;
  const std::lock_guard lock(memory_mutex);
  allocated.erase(base);  // or tests name an address of their own
  return CUDA_SUCCESS;
}
CUresult cuMemGetAddressRange_v2(CUdeviceptr* base, size_t* size, CUdeviceptr data) {
  *base = data;
  *size = 512;
  return met("cuMemGetAddressRange");
}
CUresult cuIpcGetMemHandle(CUipcMemHandle* handle, CUdeviceptr base) {
  std::memset(handle, 0, sizeof(*handle));
  std::memcpy(handle, &base, sizeof(base));
  return met("cuIpcGetMemHandle");
}
CUresult cuIpcOpenMemHandle_v2(CUdeviceptr* base, CUipcMemHandle handle, unsigned flags) {
  std::memcpy(base, &handle, sizeof(*base));
  return met("cuIpcOpenMemHandle", flags == CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
}
CUresult cuIpcCloseMemHandle(CUdeviceptr) {
  return met("cuIpcCloseMemHandle");
}
CUresult cuMemHostRegister_v2(void* host, size_t, unsigned flags) {
  const CUresult result = met("cuMemHostRegister", (flags & CU_MEMHOSTREGISTER_DEVICEMAP) != 0);
  registered_last = host;
  if (result != CUDA_SUCCESS) return result;
  const std::lock_guard lock(registered_mutex);
  return registered.emplace(host, flags).second ? CUDA_SUCCESS
                                                : CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
}
CUresult cuMemHostUnregister(void* host) {
  const CUresult result = met("cuMemHostUnregister");
  if (result != CUDA_SUCCESS) return result;
  ++unregistrations;
  ++unregistering;
  while (unregistering < unregister_together) sched_yield();
  const std::lock_guard lock(registered_mutex);
  return registered.erase(host) == 1 ? CUDA_SUCCESS : CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
}
CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr* address, void* host, unsigned) {
  // Another address than the host's, so that forgetting to ask shows.
  *address = reinterpret_cast<CUdeviceptr>(host) + kSeenBeyond;
  // Every device sees the words, whoever registered them.
  const std::lock_guard lock(registered_mutex);
  const auto found = registered.find(host);
  return met("cuMemHostGetDevicePointer",
             found != registered.end() && (found->second & CU_MEMHOSTREGISTER_PORTABLE) != 0);
}
CUresult cuMemsetD32Async(CUdeviceptr, unsigned, size_t, CUstream) {
  return met("cuMemsetD32Async");
}
CUresult cuMemcpyAsync(CUdeviceptr, CUdeviceptr, size_t, CUstream) {
  return met("cuMemcpyAsync");
}

// ---- streams and events -------------------------------------------------------------------------

CUresult cuStreamCreate(CUstream* stream, unsigned flags) {
  *stream = named<CUstream>(next_address.fetch_add(64));
  return met("cuStreamCreate", flags == CU_STREAM_NON_BLOCKING);
}
CUresult cuStreamDestroy_v2(CUstream) {
  return met("cuStreamDestroy");
}
CUresult cuStreamSynchronize(CUstream) {
  return met("cuStreamSynchronize");
}
CUresult cuStreamQuery(CUstream) {
  return met("cuStreamQuery");
}
CUresult cuStreamGetCaptureInfo_v2(CUstream, CUstreamCaptureStatus* status, cuuint64_t* id,
                                   CUgraph* graph, const CUgraphNode**, size_t*) {
  const bool capturing = std::getenv("FAKE_CUDA_CAPTURING") != nullptr;
  *status = capturing ? CU_STREAM_CAPTURE_STATUS_ACTIVE : CU_STREAM_CAPTURE_STATUS_NONE;
  *id = 1;
  *graph = capturing ? named<CUgraph>(1) : nullptr;
  return met("cuStreamGetCaptureInfo");
}
// A user object is its destructor; the graph's references are let go of by fakeCudaDestroyGraph.
CUresult cuUserObjectCreate(CUuserObject* made, void* data, CUhostFn destroy, unsigned count,
                            unsigned flags) {
  const CUresult result = met("cuUserObjectCreate", count == 1 && flags == 1);
  if (result == CUDA_SUCCESS) *made = reinterpret_cast<CUuserObject>(new UserObject{data, destroy});
  return result;
}
CUresult cuUserObjectRelease(CUuserObject object, unsigned) {
  destroy(reinterpret_cast<UserObject*>(object));
  return CUDA_SUCCESS;
}
CUresult cuGraphRetainUserObject(CUgraph, CUuserObject object, unsigned count, unsigned flags) {
  const CUresult result =
      met("cuGraphRetainUserObject", count == 1 && flags == CU_GRAPH_USER_OBJECT_MOVE);
  if (result == CUDA_SUCCESS) kept_by_graph.push_back(reinterpret_cast<UserObject*>(object));
  return result;
}
CUresult cuStreamIsCapturing(CUstream, CUstreamCaptureStatus* status) {
  *status = CU_STREAM_CAPTURE_STATUS_NONE;
  return met("cuStreamIsCapturing");
}
CUresult cuStreamGetId(CUstream stream, unsigned long long* id) {
  *id = reinterpret_cast<std::uintptr_t>(stream);
  return met("cuStreamGetId");
}
CUresult cuStreamWaitEvent(CUstream, CUevent, unsigned) {
  return met("cuStreamWaitEvent");
}
CUresult cuEventCreate(CUevent* event, unsigned flags) {
  *event = named<CUevent>(next_address.fetch_add(64));
  return met("cuEventCreate", (flags & CU_EVENT_DISABLE_TIMING) != 0);
}
CUresult cuEventDestroy_v2(CUevent) {
  return met("cuEventDestroy");
}
CUresult cuEventRecord(CUevent, CUstream) {
  return met("cuEventRecord");
}
CUresult cuEventQuery(CUevent) {
  const CUresult result = met("cuEventQuery");
  return result == CUDA_SUCCESS ? CUDA_ERROR_NOT_READY : result;
}

// ---- words --------------------------------------------------------------------------------------

CUresult cuStreamBatchMemOp_v2(CUstream, unsigned count, CUstreamBatchMemOpParams* operations,
                               unsigned flags) {
  bool as_promised = count > 0 && count < 256 && flags == 0;
  for (unsigned i = 0; i < count; ++i) {
    as_promised = as_promised && operations[i].operation == CU_STREAM_MEM_OP_WRITE_VALUE_64 &&
                  operations[i].writeValue.flags == CU_STREAM_WRITE_VALUE_DEFAULT &&
                  operations[i].writeValue.address >> 62 == 1;
  }
  const CUresult result = met("cuStreamBatchMemOp", as_promised);
  for (unsigned i = 0; result == CUDA_SUCCESS && i < count; ++i) {
    auto* word = reinterpret_cast<std::uint64_t*>(operations[i].writeValue.address - kSeenBeyond);
    std::atomic_ref(*word).store(operations[i].writeValue.value64);
  }
  return result;
}
CUresult cuStreamWaitValue64_v2(CUstream, CUdeviceptr address, cuuint64_t, unsigned flags) {
  return met("cuStreamWaitValue64", flags == CU_STREAM_WAIT_VALUE_GEQ && address >> 62 == 1);
}

}  // extern "C"
