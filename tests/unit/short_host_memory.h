// Host memory that runs out when a test says so, for one thread and one allocation, or a few.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <new>
#include <string>
#include <string_view>
#include <utility>

#include "allocator/device/sim_device.h"

namespace limbo::testing {

// While it lives, the calling thread's n-th `operator new` from its making on throws std::bad_alloc
// (counted from 1), and those that follow until `in_a_row` have. One at a time in a thread.
class ShortHostMemory {
 public:
  explicit ShortHostMemory(long n, long in_a_row = 1) noexcept;
  ~ShortHostMemory();
  ShortHostMemory(const ShortHostMemory&) = delete;
  ShortHostMemory& operator=(const ShortHostMemory&) = delete;
  // Whether it came to that.
  [[nodiscard]] bool failed() const noexcept;
};

// Calls `function` again and again, each time with host memory for one allocation more, until that is
// enough; behind each call, with plenty of it, `after`. A call without enough may throw a `Failure`.
template <typename Failure = std::bad_alloc, typename Function, typename After = void (*)()>
void with_ever_more_memory(
    const Function& function, const After& after = [] {}) {
  bool done = false;
  for (long n = 1; !done; ++n) {
    ASSERT_LT(n, 1000);
    SCOPED_TRACE("allocation " + std::to_string(n) + " of host memory fails");
    {
      const ShortHostMemory memory(n);
      try {
        function();
      } catch (const Failure&) {
      }
      done = !memory.failed();
    }
    after();
  }
}

// While it lives, allocations of the calling thread do not count.
class PlentyOfHostMemory {
 public:
  PlentyOfHostMemory() noexcept;
  ~PlentyOfHostMemory();
  PlentyOfHostMemory(const PlentyOfHostMemory&) = delete;
  PlentyOfHostMemory& operator=(const PlentyOfHostMemory&) = delete;

 private:
  const long countdown_;
};

// The simulated device with host memory of its own: what fails is the allocator's, never the driver's.
class RobustDevice final : public Device {
 public:
  explicit RobustDevice(SimDevice& device) noexcept : device_(device) {}

  [[nodiscard]] std::string_view name() const noexcept override { return device_.name(); }
  [[nodiscard]] int device_count() override { return call(&Device::device_count); }
  [[nodiscard]] Uuid uuid(int device) override { return call(&Device::uuid, device); }
  [[nodiscard]] std::size_t total_memory_bytes(int device) override {
    return call(&Device::total_memory_bytes, device);
  }
  [[nodiscard]] MemoryInfo memory_info(int device) override {
    return call(&Device::memory_info, device);
  }
  [[nodiscard]] bool has_stream_memory_operations(int device) override {
    return call(&Device::has_stream_memory_operations, device);
  }
  [[nodiscard]] void* try_allocate(int device, std::size_t size_bytes) override {
    return call(&Device::try_allocate, device, size_bytes);
  }
  void free(int device, void* base) override { call(&Device::free, device, base); }
  [[nodiscard]] DriverAllocation driver_allocation(int device, const void* data) override {
    return call(&Device::driver_allocation, device, data);
  }
  [[nodiscard]] MemoryHandle export_memory(int device, void* base) override {
    return call(&Device::export_memory, device, base);
  }
  [[nodiscard]] void* open_memory(int device, const MemoryHandle& handle) override {
    return call(&Device::open_memory, device, handle);
  }
  void close_memory(int device, void* base) override { call(&Device::close_memory, device, base); }
  [[nodiscard]] std::uint64_t stream_id(StreamRef stream) override {
    return call(&Device::stream_id, stream);
  }
  [[nodiscard]] StreamHandle create_stream(int device) override {
    return call(&Device::create_stream, device);
  }
  void destroy_stream(StreamRef stream) override { call(&Device::destroy_stream, stream); }
  [[nodiscard]] bool is_capturing(StreamRef stream) override {
    return call(&Device::is_capturing, stream);
  }
  bool keep_while_graph_lives(StreamRef stream, std::shared_ptr<void> object) override {
    return call(&Device::keep_while_graph_lives, stream, std::move(object));
  }
  [[nodiscard]] bool is_lost(int device) noexcept override { return device_.is_lost(device); }
  void synchronize_stream(StreamRef stream) override { call(&Device::synchronize_stream, stream); }
  void synchronize_device(int device) override { call(&Device::synchronize_device, device); }
  [[nodiscard]] EventHandle create_event(int device) override {
    return call(&Device::create_event, device);
  }
  void destroy_event(int device, EventHandle event) override {
    call(&Device::destroy_event, device, event);
  }
  void record_event(StreamRef stream, EventHandle event) override {
    call(&Device::record_event, stream, event);
  }
  [[nodiscard]] bool query_event(int device, EventHandle event) override {
    return call(&Device::query_event, device, event);
  }
  void wait_event(StreamRef stream, EventHandle event) override {
    call(&Device::wait_event, stream, event);
  }
  void register_host_memory(int device, const HostMemory& memory) override {
    call(&Device::register_host_memory, device, memory);
  }
  void unregister_host_memory(void* data) override { call(&Device::unregister_host_memory, data); }
  void write_words(StreamRef stream, std::span<const WordWrite> writes) override {
    call(&Device::write_words, stream, writes);
  }
  void wait_word(StreamRef stream, const std::uint64_t* word, std::uint64_t at_least) override {
    call(&Device::wait_word, stream, word, at_least);
  }
  void fill(StreamRef stream, void* data, std::uint32_t value, std::size_t count_words) override {
    call(&Device::fill, stream, data, value, count_words);
  }
  void copy(StreamRef stream, void* to, const void* from, std::size_t size_bytes) override {
    call(&Device::copy, stream, to, from, size_bytes);
  }
  void copy_to_host(StreamRef stream, void* host, const void* from,
                    std::size_t size_bytes) override {
    call(&Device::copy_to_host, stream, host, from, size_bytes);
  }
  void copy_from_host(StreamRef stream, void* to, const void* host,
                      std::size_t size_bytes) override {
    call(&Device::copy_from_host, stream, to, host, size_bytes);
  }

 private:
  template <class Result, class... Parameters, class... Arguments>
  Result call(Result (Device::*function)(Parameters...), Arguments&&... arguments) {
    const PlentyOfHostMemory plenty;
    return (static_cast<Device&>(device_).*function)(std::forward<Arguments>(arguments)...);
  }

  SimDevice& device_;
};

}  // namespace limbo::testing
