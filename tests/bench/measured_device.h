// A device that can say how long the calls of one thread took, so that a benchmark can tell what the
// driver costs from what is our own. While nobody listens a call costs a branch more.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>

#include "allocator/device/device.h"

namespace limbo::bench {

enum class Call : std::uint8_t {
  kHasStreamMemoryOperations,
  kDeviceCount,
  kUuid,
  kMemory,  // allocate, free, export, open, close
  kStreamId,
  kIsCapturing,
  kEvents,  // create, record, query, wait, destroy
  kWriteWords,
  kWaitWord,
  kOther,
};
inline constexpr std::size_t kCalls = 10;
[[nodiscard]] std::string_view name_of(Call call) noexcept;

struct CallTime {
  std::uint64_t count = 0;
  std::int64_t ns = 0;
};
using CallTimes = std::array<CallTime, kCalls>;

class MeasuredDevice final : public Device {
 public:
  explicit MeasuredDevice(std::unique_ptr<Device> device) : device_(std::move(device)) {}

  [[nodiscard]] Device& inner() noexcept { return *device_; }

  // While it lives, the device calls of its thread are added to `times`.
  class Listener {
   public:
    explicit Listener(CallTimes* times) noexcept { listening_ = times; }
    ~Listener() { listening_ = nullptr; }
    Listener(const Listener&) = delete;
    Listener& operator=(const Listener&) = delete;
  };

  // Events made and not destroyed.
  [[nodiscard]] std::int64_t events_alive() const noexcept { return events_.load(); }

  // ---- Device
  [[nodiscard]] std::string_view name() const noexcept override { return device_->name(); }
  [[nodiscard]] int device_count() override;
  [[nodiscard]] Uuid uuid(int device) override;
  [[nodiscard]] std::size_t total_memory_bytes(int device) override;
  [[nodiscard]] MemoryInfo memory_info(int device) override;
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
  void hold_while_work_runs(int fd) override { device_->hold_while_work_runs(fd); }
  void fill(StreamRef stream, void* data, std::uint32_t value, std::size_t count_words) override;
  void copy(StreamRef stream, void* to, const void* from, std::size_t size_bytes) override;
  void copy_to_host(StreamRef stream, void* host, const void* from,
                    std::size_t size_bytes) override;
  void copy_from_host(StreamRef stream, void* to, const void* host,
                      std::size_t size_bytes) override;

 private:
  static thread_local CallTimes* listening_;

  const std::unique_ptr<Device> device_;
  std::atomic<std::int64_t> events_{0};
};

}  // namespace limbo::bench
