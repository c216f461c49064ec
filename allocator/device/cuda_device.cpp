// NVIDIA GPUs, by the driver API alone.
//
// cuMemAlloc in the primary context is what cudaMalloc does, and memory, streams and events are
// those of the CUDA runtime in the same process. What the driver does beyond its documentation is
// told beside the calls that depend on it.
#include <cstring>

#include "allocator/device/cuda_capture_order.h"
#include "allocator/device/cuda_contexts.h"
#include "allocator/device/cuda_host_memory.h"
#include "allocator/device/cuda_idle_wait.h"
#include "allocator/device/cuda_memory_users.h"
#include "allocator/device/device.h"
#include "allocator/device/driver_entry_points.h"
#include "allocator/error.h"

namespace limbo {

bool cuda_available(std::string* why) {
  std::string reason;
#ifdef LIMBO_HAVE_CUDA
  const bool available = driver_present(reason) && driver_entry_points(reason) != nullptr;
#else
  const bool available = false;
  reason = "this library was built without CUDA's headers";
#endif
  if (why != nullptr) *why = reason;
  return available;
}

#ifndef LIMBO_HAVE_CUDA

std::unique_ptr<Device> make_cuda_device() {
  throw Error(ErrorCode::kDeviceError, "This library was built without CUDA's headers.",
              "Build it where cuda.h is found, or choose LIMBO_DEVICE=simulated.");
}

#else

namespace {

static_assert(sizeof(CUipcMemHandle) == sizeof(MemoryHandle::bytes));
static_assert(sizeof(CUuuid) == sizeof(Uuid::bytes));

// What a thread names as its own default stream would be another thread's on Limbo's threads.
CUstream named_stream(StreamRef stream) {
  if (stream.handle == CU_STREAM_PER_THREAD) {
    throw Error(ErrorCode::kBadArgument,
                "cudaStreamPerThread was named as a stream: its meaning changes with the thread.",
                "Use a stream made by cudaStreamCreate or torch.cuda.Stream, or the default one.");
  }
  return static_cast<CUstream>(stream.handle);
}

CUdeviceptr address_of(const void* pointer) {
  return reinterpret_cast<CUdeviceptr>(pointer);
}

class CudaDevice final : public Device, public CudaCaptureOrder, public MemoryUsers {
 public:
  explicit CudaDevice(const DriverEntryPoints& driver)
      : CudaCaptureOrder(driver, contexts_),  // which only notes where they will be
        driver_(driver),
        contexts_(driver),
        host_memory_(contexts_) {}

  std::string_view name() const noexcept override { return "cuda"; }
  int device_count() override { return contexts_.count(); }
  Uuid uuid(int device) override;
  std::size_t total_memory_bytes(int device) override;
  MemoryInfo memory_info(int device) override;
  std::vector<MemoryUser> memory_users(int device) override { return ask_nvml(uuid(device)); }
  bool has_stream_memory_operations(int device) override;

  void* try_allocate(int device, std::size_t size_bytes) override;
  void free(int device, void* base) override;
  DriverAllocation driver_allocation(int device, const void* data) override;
  MemoryHandle export_memory(int device, void* base) override;
  void* open_memory(int device, const MemoryHandle& handle) override;
  void close_memory(int device, void* base) override;

  std::uint64_t stream_id(StreamRef stream) override;
  StreamHandle create_stream(int device) override;
  void destroy_stream(StreamRef stream) override;
  bool is_capturing(StreamRef stream) override;
  bool keep_while_graph_lives(StreamRef stream, std::shared_ptr<void> object) override;
  bool is_lost(int device) noexcept override { return contexts_.lost(device); }
  void synchronize_stream(StreamRef stream) override;
  void synchronize_device(int device) override;

  EventHandle create_event(int device) override;
  void destroy_event(int device, EventHandle event) override;
  void record_event(StreamRef stream, EventHandle event) override;
  bool query_event(int device, EventHandle event) override;
  void wait_event(StreamRef stream, EventHandle event) override;

  void register_host_memory(int device, const HostMemory& memory) override {
    host_memory_.add(device, memory);
  }
  void unregister_host_memory(void* data) override { host_memory_.remove(data); }
  void write_words(StreamRef stream, std::span<const WordWrite> writes) override;
  void wait_word(StreamRef stream, const std::uint64_t* word, std::uint64_t at_least) override;

  void fill(StreamRef stream, void* data, std::uint32_t value, std::size_t count_words) override;
  void copy(StreamRef stream, void* to, const void* from, std::size_t size_bytes) override;
  void copy_to_host(StreamRef stream, void* host, const void* from,
                    std::size_t size_bytes) override;
  void copy_from_host(StreamRef stream, void* to, const void* host,
                      std::size_t size_bytes) override;

 private:
  void check(const char* call, CUresult result) const { check_driver(driver_, call, result); }
  [[nodiscard]] int attribute(int device, CUdevice_attribute which);
  void copy_and_wait(StreamRef stream, CUdeviceptr to, CUdeviceptr from, std::size_t size_bytes);

  const DriverEntryPoints& driver_;
  CudaContexts contexts_;
  CudaHostMemory host_memory_;
};

// ---- devices ------------------------------------------------------------------------------------

int CudaDevice::attribute(int device, CUdevice_attribute which) {
  int value = 0;
  check("cuDeviceGetAttribute",
        driver_.cuDeviceGetAttribute(&value, which, contexts_.handle(device)));
  return value;
}

Uuid CudaDevice::uuid(int device) {
  CUuuid raw{};
  check("cuDeviceGetUuid", driver_.cuDeviceGetUuid(&raw, contexts_.handle(device)));
  Uuid uuid;
  std::memcpy(uuid.bytes.data(), &raw, sizeof(raw));
  return uuid;
}

std::size_t CudaDevice::total_memory_bytes(int device) {
  std::size_t bytes = 0;
  check("cuDeviceTotalMem", driver_.cuDeviceTotalMem(&bytes, contexts_.handle(device)));
  return bytes;
}

MemoryInfo CudaDevice::memory_info(int device) {
  const CudaCallScope scope(contexts_, device);
  MemoryInfo info;
  check("cuMemGetInfo", driver_.cuMemGetInfo(&info.free_bytes, &info.total_bytes));
  return info;
}

bool CudaDevice::has_stream_memory_operations(int device) {
  const bool in_driver = driver_.cuStreamGetId != nullptr &&
                         driver_.cuStreamBatchMemOp != nullptr &&
                         driver_.cuStreamWaitValue64 != nullptr;
  return attribute(device, CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS) != 0 &&
         attribute(device, CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED) != 0 && in_driver;
}

// ---- memory -------------------------------------------------------------------------------------

void* CudaDevice::try_allocate(int device, std::size_t size_bytes) {
  const CudaCallScope scope(contexts_, device);
  if (size_bytes == 0) {
    throw Error(ErrorCode::kDeviceError, "0 bytes of device memory were asked for.",
                "Ask for at least 1.");
  }
  CUdeviceptr base = 0;
  const CUresult result = driver_.cuMemAlloc(&base, size_bytes);
  if (result == CUDA_ERROR_OUT_OF_MEMORY) return nullptr;
  check("cuMemAlloc", result);
  return reinterpret_cast<void*>(base);
}

void CudaDevice::free(int device, void* base) {
  const CudaCallScope scope(contexts_, device);
  check("cuMemFree", driver_.cuMemFree(address_of(base)));
}

DriverAllocation CudaDevice::driver_allocation(int device, const void* data) {
  const CudaCallScope scope(contexts_, device);
  CUdeviceptr base = 0;
  DriverAllocation found;
  check("cuMemGetAddressRange",
        driver_.cuMemGetAddressRange(&base, &found.size_bytes, address_of(data)));
  found.base = reinterpret_cast<void*>(base);
  return found;
}

MemoryHandle CudaDevice::export_memory(int device, void* base) {
  const CudaCallScope scope(contexts_, device);
  CUipcMemHandle raw{};
  check("cuIpcGetMemHandle", driver_.cuIpcGetMemHandle(&raw, address_of(base)));
  MemoryHandle handle;
  handle.kind = HandleKind::kRuntimeIpc;
  std::memcpy(handle.bytes.data(), &raw, sizeof(raw));
  return handle;
}

void* CudaDevice::open_memory(int device, const MemoryHandle& handle) {
  const CudaCallScope scope(contexts_, device);
  if (handle.kind != HandleKind::kRuntimeIpc) {
    throw Error(ErrorCode::kBadArgument, "Memory handles of kind " +
                                             std::to_string(static_cast<int>(handle.kind)) +
                                             " are not opened by this version.");
  }
  CUipcMemHandle raw{};
  std::memcpy(&raw, handle.bytes.data(), sizeof(raw));
  CUdeviceptr base = 0;
  // The driver counts opens of one handle in one process and context.
  check("cuIpcOpenMemHandle",
        driver_.cuIpcOpenMemHandle(&base, raw, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
  return reinterpret_cast<void*>(base);
}

void CudaDevice::close_memory(int device, void* base) {
  const CudaCallScope scope(contexts_, device);
  check("cuIpcCloseMemHandle", driver_.cuIpcCloseMemHandle(address_of(base)));
}

// ---- streams and events -------------------------------------------------------------------------

std::uint64_t CudaDevice::stream_id(StreamRef stream) {
  const CUstream named = named_stream(stream);
  const CudaCallScope scope(contexts_, stream.device);
  if (driver_.cuStreamGetId == nullptr) {
    throw Error(ErrorCode::kDeviceError, "NVIDIA's driver is too old: it lacks cuStreamGetId.");
  }
  unsigned long long id = 0;
  check("cuStreamGetId", driver_.cuStreamGetId(named, &id));
  return id;
}

StreamHandle CudaDevice::create_stream(int device) {
  const CudaCallScope scope(contexts_, device);
  CUstream stream = nullptr;
  check("cuStreamCreate", driver_.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  return stream;
}

void CudaDevice::destroy_stream(StreamRef stream) {
  const CUstream named = named_stream(stream);
  const CudaCallScope scope(contexts_, stream.device);
  check("cuStreamDestroy", driver_.cuStreamDestroy(named));
}

bool CudaDevice::is_capturing(StreamRef stream) {
  const CUstream named = named_stream(stream);
  const CudaCallScope scope(contexts_, stream.device);
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  const CUresult result = driver_.cuStreamIsCapturing(named, &status);
  // The default stream, while a stream that synchronises with it is captured: work put there would
  // spoil that capture.
  if (result == CUDA_ERROR_STREAM_CAPTURE_IMPLICIT) return true;
  check("cuStreamIsCapturing", result);
  return status != CU_STREAM_CAPTURE_STATUS_NONE;
}

bool CudaDevice::keep_while_graph_lives(StreamRef stream, std::shared_ptr<void> object) {
  const CUstream named = named_stream(stream);
  const CudaCallScope scope(contexts_, stream.device);
  if (driver_.cuStreamGetCaptureInfo_v2 == nullptr || driver_.cuUserObjectCreate == nullptr ||
      driver_.cuUserObjectRelease == nullptr || driver_.cuGraphRetainUserObject == nullptr) {
    throw Error(ErrorCode::kDeviceError,
                "NVIDIA's driver is too old: graphs cannot keep objects in it.");
  }
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  cuuint64_t id = 0;
  CUgraph graph = nullptr;
  const CUresult asked =
      driver_.cuStreamGetCaptureInfo_v2(named, &status, &id, &graph, nullptr, nullptr);
  if (asked == CUDA_ERROR_STREAM_CAPTURE_IMPLICIT) return false;  // see is_capturing
  check("cuStreamGetCaptureInfo", asked);
  if (status != CU_STREAM_CAPTURE_STATUS_ACTIVE || graph == nullptr) return false;

  auto kept = std::make_unique<std::shared_ptr<void> >(std::move(object));
  CUuserObject user = nullptr;
  check("cuUserObjectCreate",
        driver_.cuUserObjectCreate(
            &user, kept.get(), [](void* held) { delete static_cast<std::shared_ptr<void>*>(held); },
            1, CU_USER_OBJECT_NO_DESTRUCTOR_SYNC));
  (void)kept.release();  // the user object's
  // The graph takes the one reference over. Instantiated and cloned graphs take their own, and what
  // is destroyed while it runs gives its own back when it has ended.
  const CUresult retained =
      driver_.cuGraphRetainUserObject(graph, user, 1, CU_GRAPH_USER_OBJECT_MOVE);
  if (retained != CUDA_SUCCESS) driver_.cuUserObjectRelease(user, 1);
  check("cuGraphRetainUserObject", retained);
  return true;
}

void CudaDevice::synchronize_stream(StreamRef stream) {
  const CUstream named = named_stream(stream);
  const CudaCallScope scope(contexts_, stream.device);
  check("cuStreamSynchronize", driver_.cuStreamSynchronize(named));
}

void CudaDevice::synchronize_device(int device) {
  if (!contexts_.has_context(device)) return;  // nobody has used it, and waiting would make one
  const CudaCallScope scope(contexts_, device);
  wait_until_idle(driver_, device);
}

EventHandle CudaDevice::create_event(int device) {
  const CudaCallScope scope(contexts_, device);
  CUevent event = nullptr;
  check("cuEventCreate", driver_.cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
  return event;
}

void CudaDevice::destroy_event(int device, EventHandle event) {
  const CudaCallScope scope(contexts_, device);
  check("cuEventDestroy", driver_.cuEventDestroy(static_cast<CUevent>(event)));
}

void CudaDevice::record_event(StreamRef stream, EventHandle event) {
  const CUstream named = named_stream(stream);
  const CudaCallScope scope(contexts_, stream.device);
  check("cuEventRecord", driver_.cuEventRecord(static_cast<CUevent>(event), named));
}

bool CudaDevice::query_event(int device, EventHandle event) {
  const CudaCallScope scope(contexts_, device);
  const CUresult result = driver_.cuEventQuery(static_cast<CUevent>(event));
  if (result == CUDA_ERROR_NOT_READY) return false;
  check("cuEventQuery", result);
  return true;
}

void CudaDevice::wait_event(StreamRef stream, EventHandle event) {
  const CUstream named = named_stream(stream);
  const CudaCallScope scope(contexts_, stream.device);
  check("cuStreamWaitEvent",
        driver_.cuStreamWaitEvent(named, static_cast<CUevent>(event), CU_EVENT_WAIT_DEFAULT));
}

// ---- words in host memory -----------------------------------------------------------------------

void CudaDevice::write_words(StreamRef stream, std::span<const WordWrite> writes) {
  const CUstream named = named_stream(stream);
  if (writes.size() > kMaxBatchOperations) {
    throw Error(ErrorCode::kDeviceError,
                std::to_string(writes.size()) + " words were to be written in one batch.",
                "At most " + std::to_string(kMaxBatchOperations) + " fit.");
  }
  if (writes.empty()) return;
  const CudaCallScope scope(contexts_, stream.device);
  if (driver_.cuStreamBatchMemOp == nullptr) {
    throw Error(ErrorCode::kDeviceError,
                "NVIDIA's driver is too old: it lacks cuStreamBatchMemOp.");
  }
  std::array<CUstreamBatchMemOpParams, kMaxBatchOperations> operations;
  for (std::size_t i = 0; i < writes.size(); ++i) {
    operations[i] = CUstreamBatchMemOpParams{};
    operations[i].writeValue.operation = CU_STREAM_MEM_OP_WRITE_VALUE_64;
    operations[i].writeValue.address =
        host_memory_.device_address(stream.device, writes[i].word, true);
    operations[i].writeValue.value64 = writes[i].value;
    // Never without the barrier: whoever sees a word is to see all that the stream did before it.
    operations[i].writeValue.flags = CU_STREAM_WRITE_VALUE_DEFAULT;
  }
  check("cuStreamBatchMemOp",
        driver_.cuStreamBatchMemOp(named, static_cast<unsigned>(writes.size()), operations.data(),
                                   0));
}

void CudaDevice::wait_word(StreamRef stream, const std::uint64_t* word, std::uint64_t at_least) {
  const CUstream named = named_stream(stream);
  const CudaCallScope scope(contexts_, stream.device);
  if (driver_.cuStreamWaitValue64 == nullptr) {
    throw Error(ErrorCode::kDeviceError,
                "NVIDIA's driver is too old: it lacks cuStreamWaitValue64.");
  }
  const CUdeviceptr address = host_memory_.device_address(stream.device, word, false);
  check("cuStreamWaitValue64",
        driver_.cuStreamWaitValue64(named, address, at_least, CU_STREAM_WAIT_VALUE_GEQ));
}

// ---- data ---------------------------------------------------------------------------------------

void CudaDevice::fill(StreamRef stream, void* data, std::uint32_t value, std::size_t count_words) {
  const CUstream named = named_stream(stream);
  const CudaCallScope scope(contexts_, stream.device);
  if (count_words == 0) return;
  check("cuMemsetD32Async", driver_.cuMemsetD32Async(address_of(data), value, count_words, named));
}

void CudaDevice::copy(StreamRef stream, void* to, const void* from, std::size_t size_bytes) {
  const CUstream named = named_stream(stream);
  const CudaCallScope scope(contexts_, stream.device);
  if (size_bytes == 0) return;
  check("cuMemcpyAsync",
        driver_.cuMemcpyAsync(address_of(to), address_of(from), size_bytes, named));
}

void CudaDevice::copy_and_wait(StreamRef stream, CUdeviceptr to, CUdeviceptr from,
                               std::size_t size_bytes) {
  const CUstream named = named_stream(stream);
  const CudaCallScope scope(contexts_, stream.device);
  if (size_bytes == 0) return;
  check("cuMemcpyAsync", driver_.cuMemcpyAsync(to, from, size_bytes, named));
  check("cuStreamSynchronize", driver_.cuStreamSynchronize(named));
}

void CudaDevice::copy_to_host(StreamRef stream, void* host, const void* from,
                              std::size_t size_bytes) {
  copy_and_wait(stream, address_of(host), address_of(from), size_bytes);
}

void CudaDevice::copy_from_host(StreamRef stream, void* to, const void* host,
                                std::size_t size_bytes) {
  copy_and_wait(stream, address_of(to), address_of(host), size_bytes);
}

}  // namespace

std::unique_ptr<Device> make_cuda_device() {
  std::string why;
  const DriverEntryPoints* driver = driver_entry_points(why);
  if (driver == nullptr) {
    throw Error(ErrorCode::kDeviceError, "There is no CUDA device: " + why + ".",
                "Install NVIDIA's driver, or choose LIMBO_DEVICE=simulated.");
  }
  return std::make_unique<CudaDevice>(*driver);
}

#endif

}  // namespace limbo
