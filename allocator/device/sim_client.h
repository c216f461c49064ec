// SimDevice put together: checks, counts and faults here, the work in the parts.
#pragma once

#include <array>
#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "allocator/device/capture_order.h"
#include "allocator/device/memory_users.h"
#include "allocator/device/sim_device.h"
#include "allocator/device/sim_graves.h"
#include "allocator/device/sim_host_memory.h"
#include "allocator/device/sim_link.h"
#include "allocator/device/sim_memory.h"
#include "allocator/device/sim_streams.h"

namespace limbo::sim {

class Client final : public SimDevice, public CaptureOrder, public MemoryUsers {
 public:
  Client();
  ~Client() override;

  [[nodiscard]] std::string_view name() const noexcept override { return "simulated"; }
  [[nodiscard]] int device_count() override;
  [[nodiscard]] Uuid uuid(int device) override;
  [[nodiscard]] std::size_t total_memory_bytes(int device) override;
  [[nodiscard]] MemoryInfo memory_info(int device) override;
  [[nodiscard]] std::vector<MemoryUser> memory_users(int device) override;
  [[nodiscard]] bool has_stream_memory_operations(int device) override;

  [[nodiscard]] void* try_allocate(int device, std::size_t size_bytes) override;
  void free(int device, void* base) override;
  [[nodiscard]] DriverAllocation driver_allocation(int device, const void* data) override;
  [[nodiscard]] MemoryHandle export_memory(int device, void* base) override;
  [[nodiscard]] void* open_memory(int device, const MemoryHandle& handle) override;
  void close_memory(int device, void* base) override;

  [[nodiscard]] std::uint64_t stream_id(StreamRef stream) override;
  [[nodiscard]] StreamHandle create_stream(int device) override;
  void destroy_stream(StreamRef stream) override;
  [[nodiscard]] bool is_capturing(StreamRef stream) override;
  [[nodiscard]] std::shared_ptr<const CapturePoint> captured_so_far(
      StreamRef stream) noexcept override;
  [[nodiscard]] std::vector<bool> come_before(
      std::span<const std::shared_ptr<const CapturePoint>> points, StreamRef stream) override;
  bool keep_while_graph_lives(StreamRef stream, std::shared_ptr<void> object) override;
  [[nodiscard]] bool is_lost(int device) noexcept override;
  void synchronize_stream(StreamRef stream) override;
  void synchronize_device(int device) override;
  [[nodiscard]] EventHandle create_event(int device) override;
  void destroy_event(int device, EventHandle event) override;
  void record_event(StreamRef stream, EventHandle event) override;
  [[nodiscard]] bool query_event(int device, EventHandle event) override;
  void wait_event(StreamRef stream, EventHandle event) override;

  void register_host_memory(int device, const HostMemory& memory) override;
  void unregister_host_memory(void* data) override;
  void write_words(StreamRef stream, std::span<const WordWrite> writes) override;
  void wait_word(StreamRef stream, const std::uint64_t* word, std::uint64_t at_least) override;
  void hold_while_work_runs(int fd) override;

  void fill(StreamRef stream, void* data, std::uint32_t value, std::size_t count_words) override;
  void copy(StreamRef stream, void* to, const void* from, std::size_t size_bytes) override;
  void copy_to_host(StreamRef stream, void* host, const void* from,
                    std::size_t size_bytes) override;
  void copy_from_host(StreamRef stream, void* to, const void* host,
                      std::size_t size_bytes) override;

  void enqueue_kernel(StreamRef stream, std::chrono::microseconds duration, void* data,
                      std::size_t size_bytes, std::uint32_t value) override;
  [[nodiscard]] SimHold hold_stream(StreamRef stream) override;
  void release_hold(SimHold hold) override;
  void wait_until_idle() override;
  void begin_capture(StreamRef stream, SimCaptureMode mode) override;
  [[nodiscard]] std::unique_ptr<SimGraph> end_capture(StreamRef stream) override;
  void launch_graph(StreamRef stream, const SimGraph& graph) override;
  [[nodiscard]] bool query_event_globally(int device, EventHandle event) override;
  [[nodiscard]] FaultPlan& faults() override { return faults_; }
  [[nodiscard]] std::uint64_t calls(CallKind kind) override { return faults_.calls(kind); }
  void reset_calls() override { faults_.reset_calls(); }
  void inject_sticky_error(int device, const std::string& words) override;
  [[nodiscard]] Balance balance() override;
  [[nodiscard]] std::int64_t companion_pid() override;

 private:
  // What exists from the first use on.
  struct Parts {
    explicit Parts(const MachineChoice& choice);

    Link link;
    std::vector<std::uint32_t> visible;  // this process's index -> the machine's
    Memory memory;
    Streams streams;
    HostRegistrations host;
    std::shared_ptr<Graves> graves = std::make_shared<Graves>();  // last: it looks at streams
  };

  Parts& parts();
  // The start of every call: not in a fork child, a device that exists and is not lost, counts and
  // faults.
  Parts& enter(std::string_view call, int device);
  Parts& enter(CallKind kind, int device, bool* full = nullptr);
  void check_lost(std::string_view call, int device);
  [[nodiscard]] std::uint64_t expect_mapped(const char* call, int for_device, StreamRef stream,
                                            const void* data, std::size_t size_bytes);
  // Loses the device, as an illegal access does, and throws.
  [[noreturn]] void refuse_access(const char* call, StreamRef stream, std::size_t size_bytes);

  FaultPlan faults_;
  std::mutex parts_mutex_;  // guards the making of parts_ and held_descriptor_; held over it
  std::unique_ptr<Parts> owned_parts_;
  std::atomic<Parts*> parts_{nullptr};
  int held_descriptor_ = -1;
  std::array<std::atomic<bool>, kMaxDevices> lost_{};
  std::mutex lost_mutex_;  // guards lost_words_
  std::array<std::string, kMaxDevices> lost_words_;
};

}  // namespace limbo::sim
