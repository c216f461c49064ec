// The only way to the driver.
//
// Two implementations: `cuda` (the driver API of NVIDIA, found at run time, so that a machine
// without a driver can load the library) and `simulated` (shared host memory with a capacity, and
// streams that a companion process works off, so that work outlives its process as on hardware).
// Everything above this interface is the same code on both.
//
// Rules for every implementation:
// - Every call is told its device, and streams by their handle; "current" ones are the caller's
//   business. A call leaves the calling thread's current device and context as it found them.
// - Calls are safe from any thread at any time. None is made under an allocator lock, except where
//   the caller says why that cannot deadlock or stall others.
// - Calls are made in relaxed capture mode: they never invalidate somebody's graph capture.
// - A failing driver call throws Error(kDeviceError) with the call's name and the driver's words,
//   leaves no half-made state, and leaves no error behind for the program's next driver call. So
//   does an argument that a driver refuses: no such device, 0 bytes, a batch that is too long, a
//   word that is not registered.
// - After fork, a child must not call in (the layers above check that).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace limbo {

// A stream as the driver names it (`CUstream`, `cudaStream_t`); null is the default stream, and so
// is 1 (cudaStreamLegacy). 2 (cudaStreamPerThread) means another stream in every thread: it is
// refused with Error(kBadArgument) wherever a stream is named.
using StreamHandle = void*;

struct StreamRef {
  int device = 0;
  StreamHandle handle = nullptr;

  friend bool operator==(const StreamRef&, const StreamRef&) = default;
};

// An event as the driver names it. Made by create_event, never shared between processes.
using EventHandle = void*;

struct Uuid {
  std::array<std::uint8_t, 16> bytes{};

  friend bool operator==(const Uuid&, const Uuid&) = default;
};

// "GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx", as nvidia-smi prints it.
[[nodiscard]] std::string to_string(const Uuid& uuid);

enum class HandleKind : std::uint8_t {
  kRuntimeIpc = 1,      // 64 bytes, equal for equal segments
  kFileDescriptor = 2,  // travels over the channel (virtual memory management; not made yet)
  kFabric = 3,          // 64 bytes of a fabric handle (not made yet)
};

// What another process needs to map a piece. For kRuntimeIpc the bytes are canonical: equal for
// every export of one piece, and never equal for two pieces.
struct MemoryHandle {
  HandleKind kind = HandleKind::kRuntimeIpc;
  std::array<std::byte, 64> bytes{};

  friend bool operator==(const MemoryHandle&, const MemoryHandle&) = default;
};

// Memory as the driver gave it, by one call.
struct DriverAllocation {
  void* base = nullptr;
  std::size_t size_bytes = 0;

  friend bool operator==(const DriverAllocation&, const DriverAllocation&) = default;
};

struct MemoryInfo {
  std::size_t free_bytes = 0;
  std::size_t total_bytes = 0;
};

// One 64-bit word of registered host memory that a stream is to write.
struct WordWrite {
  std::uint64_t* word = nullptr;
  std::uint64_t value = 0;
};

// Host memory that streams write or wait on: a mapping of `fd` (a memfd) from its start.
// `writable` false: streams only wait on it; the mapping may then be read-only.
struct HostMemory {
  void* data = nullptr;
  std::size_t size_bytes = 0;  // a multiple of the page size
  int fd = -1;                 // the simulated device maps it in its companion; CUDA ignores it
  bool writable = true;
};

class Device {
 public:
  virtual ~Device() = default;

  // "cuda" or "simulated".
  [[nodiscard]] virtual std::string_view name() const noexcept = 0;

  // The number of devices this process may use. 0 is no error.
  [[nodiscard]] virtual int device_count() = 0;
  [[nodiscard]] virtual Uuid uuid(int device) = 0;
  // All memory of the device; asked of one that this process does not use, it stays so.
  [[nodiscard]] virtual std::size_t total_memory_bytes(int device) = 0;
  // What is free of it. Uses the device: on CUDA its context is made, which takes memory there.
  [[nodiscard]] virtual MemoryInfo memory_info(int device) = 0;

  // Whether streams of `device` can write and wait on host words. Without it nothing is lent or
  // received there.
  [[nodiscard]] virtual bool has_stream_memory_operations(int device) = 0;

  // ---- memory -----------------------------------------------------------------------------

  // Returns null when the device has no room; throws on every other failure. Sizes are multiples
  // of 2 MiB when the caching allocator asks; any positive size works. Memory is 512-aligned at
  // least, and 2 MiB-aligned for multiples of 2 MiB.
  [[nodiscard]] virtual void* try_allocate(int device, std::size_t size_bytes) = 0;

  // May wait until the device is idle (cudaFree does). Memory that another process still maps
  // stays alive there.
  virtual void free(int device, void* base) = 0;

  // The allocation that holds `data`, whoever asked the driver for it in this process. Throws
  // Error(kDeviceError) where there is none.
  [[nodiscard]] virtual DriverAllocation driver_allocation(int device, const void* data) = 0;

  // `base` is that of a driver_allocation, as are pointers that try_allocate returned: opened, the
  // handle gives all of it. Of memory that others asked for in another way than try_allocate does
  // the driver may have no handle: Error(kDeviceError).
  [[nodiscard]] virtual MemoryHandle export_memory(int device, void* base) = 0;

  // Maps a piece of another process for `device`. Refused (kDeviceError) in the process that made
  // it. Opening one handle twice gives the same address and is counted.
  [[nodiscard]] virtual void* open_memory(int device, const MemoryHandle& handle) = 0;

  // Undoes one open. Waits until the device is idle, and meanwhile launches of other threads wait
  // too (measured on hardware): never call it where anybody waits for the caller.
  virtual void close_memory(int device, void* base) = 0;

  // ---- streams and events -----------------------------------------------------------------

  // Names a stream for the life of the process; handles are reused by the driver, ids are not. Not of
  // a stream that is being captured: it throws kDeviceError, and the capture is lost (measured).
  [[nodiscard]] virtual std::uint64_t stream_id(StreamRef stream) = 0;

  // Made non-blocking with regard to the default stream.
  [[nodiscard]] virtual StreamHandle create_stream(int device) = 0;
  virtual void destroy_stream(StreamRef stream) = 0;

  // Also true for the default stream while a stream that synchronises with it is being captured.
  [[nodiscard]] virtual bool is_capturing(StreamRef stream) = 0;

  // The graph that `stream` is being captured into keeps `object` until the graph, and everything
  // that was instantiated or cloned from it, is destroyed and no launch of it runs any more. Then
  // `object` is let go of, on any thread: its destructor makes no device call, and waits for nobody
  // who does. A capture that fails has no graph: `object` goes with the capture. False: nothing is
  // captured into a graph there (any more), and `object` was let go of at once. Not while another
  // thread ends this very capture. Throws kDeviceError; then nothing is kept.
  virtual bool keep_while_graph_lives(StreamRef stream, std::shared_ptr<void> object) = 0;

  // Whether this process's context on `device` is lost: after an illegal access or the like every
  // call there fails for ever. It is reported on all devices of the process, and on those that did not
  // fault kernels write on (measured). Waits for nothing; false where nothing has used the device yet.
  [[nodiscard]] virtual bool is_lost(int device) noexcept = 0;

  virtual void synchronize_stream(StreamRef stream) = 0;
  // Waits until everything that this process had queued on the device is done; where it has not used
  // the device there is nothing. Breaks no capture, so that background threads may call it; what is
  // being captured is not waited for. Throws kDeviceError; unless the device is lost it may not have
  // waited then, as where memory of every kind has run out (cuda_idle_wait.h): try again later.
  virtual void synchronize_device(int device) = 0;

  [[nodiscard]] virtual EventHandle create_event(int device) = 0;
  virtual void destroy_event(int device, EventHandle event) = 0;
  virtual void record_event(StreamRef stream, EventHandle event) = 0;
  // True when all work before the last record is done, or nothing was recorded.
  [[nodiscard]] virtual bool query_event(int device, EventHandle event) = 0;
  virtual void wait_event(StreamRef stream, EventHandle event) = 0;

  // ---- words in host memory ---------------------------------------------------------------

  // Makes host memory usable by write_words and wait_word on every device. `device` is one that the
  // caller uses: another is not used for it. Throws kDeviceError.
  virtual void register_host_memory(int device, const HostMemory& memory) = 0;
  virtual void unregister_host_memory(void* data) = 0;

  // Writes in order, behind the stream's earlier work, each visible before the next. At most
  // kMaxBatchOperations writes. Blocks the host only where a launch would: on a stream that holds
  // 1,021 entries already.
  virtual void write_words(StreamRef stream, std::span<const WordWrite> writes) = 0;
  static constexpr std::size_t kMaxBatchOperations = 255;

  // Later work of the stream waits until *word >= at_least, compared as signed and cyclic
  // (int64(*word - at_least) >= 0), as the driver does.
  virtual void wait_word(StreamRef stream, const std::uint64_t* word, std::uint64_t at_least) = 0;

  // `fd`'s closing by everybody is to be the sign that none of this process's work runs any more
  // (a life line). CUDA needs nothing for it: the driver ends the work before a dying process's
  // lower descriptors close. The simulated device keeps a copy open until its work has ended. May
  // be called before the device is used; starts nothing then.
  virtual void hold_while_work_runs(int /*fd*/) {}

  // ---- data -------------------------------------------------------------------------------
  // Behind the stream's earlier work. copy_to_host and copy_from_host return when done.

  virtual void fill(StreamRef stream, void* data, std::uint32_t value, std::size_t count_words) = 0;
  virtual void copy(StreamRef stream, void* to, const void* from, std::size_t size_bytes) = 0;
  virtual void copy_to_host(StreamRef stream, void* host, const void* from,
                            std::size_t size_bytes) = 0;
  virtual void copy_from_host(StreamRef stream, void* to, const void* host,
                              std::size_t size_bytes) = 0;
};

// Whether NVIDIA's driver can be used here; if not, `*why` (when given) says what is missing.
// Starts nothing that a fork would break.
[[nodiscard]] bool cuda_available(std::string* why = nullptr);

// Throws kDeviceError when the driver is missing or this library was built without CUDA headers.
[[nodiscard]] std::unique_ptr<Device> make_cuda_device();

// The simulated GPUs of the machine that LIMBO_SIM_MACHINE names (sim_device.h has the options).
[[nodiscard]] std::unique_ptr<Device> make_simulated_device();

// The device of this process: made at first use, never destroyed. LIMBO_DEVICE chooses: "auto" (the
// default: cuda where it is available, an error that says why where not), "cuda" or "simulated".
[[nodiscard]] Device& process_device();

}  // namespace limbo
