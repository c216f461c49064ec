// The simulated GPUs: a Device that needs no hardware, and what tests may do with it beyond Device.
//
// A *machine* (the GPUs) is a file; every process that names the same one shares its GPUs as
// processes share hardware. Environment:
//
// | variable            | meaning                                                  | default |
// |---------------------|----------------------------------------------------------|---------|
// | LIMBO_SIM_MACHINE   | path of the machine's file; made by whoever comes first, | (1)     |
// |                     | removed by the last to leave                             |         |
// | LIMBO_SIM_DEVICES   | its GPUs, 1 to 8; read when the machine is made          | 1       |
// | LIMBO_SIM_MEMORY_MB | memory of each; read when the machine is made            | 2048    |
// | LIMBO_SIM_VISIBLE   | indices of the GPUs that this process sees, in its order | all     |
// | LIMBO_SIM_FAULTS    | a fault plan (fault_plan.h)                              | none    |
// | LIMBO_SIM_COMPANION | the companion program                                    | (2)     |
//
// (1) `sim-machine` in $LIMBO_RUNTIME_DIR, else $XDG_RUNTIME_DIR/limbo, else /tmp/limbo-<uid>.
// (2) limbo_sim_companion beside the library, else in ../bin.
//
// It behaves as hardware was measured to. Where it differs:
// - Host code can read and write device memory through its pointers. Fork children cannot.
// - Memory is given out in units of 2 MiB, and comes zeroed.
// - An access to memory that is not mapped is refused when it is enqueued, and not when it runs. As
//   on hardware the device is lost to this process from then on (a sticky error).
// - The default stream does not wait for other streams, nor they for it.
// - close_memory and free wait for what the device has queued when they begin to wait; on hardware
//   whatever is running counts.
// - The end of a killed process's work follows the closing of its descriptors by some microseconds
//   or, on a busy machine, milliseconds; on hardware the closing itself waits for it. Whoever takes
//   the closing of a descriptor (a life line) as the sign that the work has ended gives it to the
//   device by hold_while_work_runs: then it is the sign.
// - register_host_memory needs HostMemory::fd. Unregistering does not wait: what is enqueued by
//   then can still write.
// - Killing the companion alone is like pulling the card: the client's calls say "device lost", and
//   its memory may be given to others although its pointers still reach it.
// - Every SimDevice is a client of its own: two of them in one process behave as two processes do.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "allocator/device/device.h"
#include "allocator/device/fault_plan.h"

namespace limbo {

// How strict a capture is about calls that other threads make (cudaStreamCaptureMode).
enum class SimCaptureMode : std::uint8_t { kGlobal, kThreadLocal, kRelaxed };

// Captured work. Opaque; may be launched any number of times, by one thread at a time. Destroying it
// ends what it keeps (keep_while_graph_lives) once its launches have ended. Goes before its device.
class SimGraph {
 public:
  virtual ~SimGraph() = default;
};

// A place at which a stream stands still until release_hold.
struct SimHold {
  std::uint32_t slot = 0;
  std::uint64_t position = 0;
};

class SimDevice : public Device {
 public:
  // ---- work -------------------------------------------------------------------------------

  // A kernel that runs for `duration` and meanwhile writes `value` again and again to every 32-bit
  // word of [data, data + size_bytes) (at least once). `data` null: it only takes time.
  virtual void enqueue_kernel(StreamRef stream, std::chrono::microseconds duration, void* data,
                              std::size_t size_bytes, std::uint32_t value) = 0;

  // Makes the stream stand still behind its earlier work until release_hold, or until this process
  // has ended.
  [[nodiscard]] virtual SimHold hold_stream(StreamRef stream) = 0;
  virtual void release_hold(SimHold hold) = 0;

  // Waits until every stream of this process has done all that was enqueued.
  virtual void wait_until_idle() = 0;

  // ---- capture ----------------------------------------------------------------------------

  // Calls on a capturing stream do not run: they become the graph's.
  virtual void begin_capture(StreamRef stream, SimCaptureMode mode) = 0;
  // Throws kDeviceError when something invalidated the capture; it has ended all the same.
  [[nodiscard]] virtual std::unique_ptr<SimGraph> end_capture(StreamRef stream) = 0;
  virtual void launch_graph(StreamRef stream, const SimGraph& graph) = 0;

  // query_event as a program makes it that has not asked for relaxed mode: while any stream of the
  // process is being captured in global mode it throws kDeviceError, and the capture is lost.
  [[nodiscard]] virtual bool query_event_globally(int device, EventHandle event) = 0;

  // ---- faults and counts ------------------------------------------------------------------

  [[nodiscard]] virtual FaultPlan& faults() = 0;
  [[nodiscard]] virtual std::uint64_t calls(CallKind kind) = 0;
  virtual void reset_calls() = 0;

  // The device is lost to this process, as after an illegal access: what runs comes to its end, the
  // rest of the queues is dropped, and then every call fails with these words, for ever.
  virtual void inject_sticky_error(int device, const std::string& words) = 0;

  // ---- balance ----------------------------------------------------------------------------

  struct Balance {
    std::size_t allocated = 0;              // live allocations of this process
    std::size_t opened = 0;                 // mappings of others' memory
    std::uint64_t machine_allocations = 0;  // alive on the whole machine, whoever holds them
    std::uint32_t machine_processes = 0;
  };
  [[nodiscard]] virtual Balance balance() = 0;
  [[nodiscard]] virtual std::int64_t companion_pid() = 0;
};

// Throws kBadArgument when `device` is not a simulated one.
[[nodiscard]] SimDevice& as_sim(Device& device);

}  // namespace limbo
