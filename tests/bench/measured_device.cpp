#include "tests/bench/measured_device.h"

#include "tests/bench/samples.h"

namespace limbo::bench {
namespace {

// Adds the time until the end of its scope.
class Stopwatch {
 public:
  Stopwatch(CallTimes* times, Call call) noexcept
      : times_(times), call_(call), start_(times != nullptr ? Clock::now() : Clock::time_point{}) {}
  ~Stopwatch() {
    if (times_ == nullptr) return;
    CallTime& time = (*times_)[static_cast<std::size_t>(call_)];
    ++time.count;
    time.ns += ns_since(start_);
  }
  Stopwatch(const Stopwatch&) = delete;
  Stopwatch& operator=(const Stopwatch&) = delete;

 private:
  CallTimes* const times_;
  const Call call_;
  const Clock::time_point start_;
};

}  // namespace

thread_local CallTimes* MeasuredDevice::listening_ = nullptr;

std::string_view name_of(Call call) noexcept {
  constexpr std::array<std::string_view, kCalls> kNames{"has_stream_memory_operations",
                                                        "device_count",
                                                        "uuid",
                                                        "memory",
                                                        "stream_id",
                                                        "is_capturing",
                                                        "events",
                                                        "write_words",
                                                        "wait_word",
                                                        "other"};
  return kNames[static_cast<std::size_t>(call)];
}

int MeasuredDevice::device_count() {
  const Stopwatch watch(listening_, Call::kDeviceCount);
  return device_->device_count();
}

Uuid MeasuredDevice::uuid(int device) {
  const Stopwatch watch(listening_, Call::kUuid);
  return device_->uuid(device);
}

std::size_t MeasuredDevice::total_memory_bytes(int device) {
  const Stopwatch watch(listening_, Call::kOther);
  return device_->total_memory_bytes(device);
}

MemoryInfo MeasuredDevice::memory_info(int device) {
  const Stopwatch watch(listening_, Call::kOther);
  return device_->memory_info(device);
}

bool MeasuredDevice::has_stream_memory_operations(int device) {
  const Stopwatch watch(listening_, Call::kHasStreamMemoryOperations);
  return device_->has_stream_memory_operations(device);
}

void* MeasuredDevice::try_allocate(int device, std::size_t size_bytes) {
  const Stopwatch watch(listening_, Call::kMemory);
  return device_->try_allocate(device, size_bytes);
}

void MeasuredDevice::free(int device, void* base) {
  const Stopwatch watch(listening_, Call::kMemory);
  device_->free(device, base);
}

DriverAllocation MeasuredDevice::driver_allocation(int device, const void* data) {
  const Stopwatch watch(listening_, Call::kMemory);
  return device_->driver_allocation(device, data);
}

MemoryHandle MeasuredDevice::export_memory(int device, void* base) {
  const Stopwatch watch(listening_, Call::kMemory);
  return device_->export_memory(device, base);
}

void* MeasuredDevice::open_memory(int device, const MemoryHandle& handle) {
  const Stopwatch watch(listening_, Call::kMemory);
  return device_->open_memory(device, handle);
}

void MeasuredDevice::close_memory(int device, void* base) {
  const Stopwatch watch(listening_, Call::kMemory);
  device_->close_memory(device, base);
}

std::uint64_t MeasuredDevice::stream_id(StreamRef stream) {
  const Stopwatch watch(listening_, Call::kStreamId);
  return device_->stream_id(stream);
}

StreamHandle MeasuredDevice::create_stream(int device) {
  const Stopwatch watch(listening_, Call::kOther);
  return device_->create_stream(device);
}

void MeasuredDevice::destroy_stream(StreamRef stream) {
  const Stopwatch watch(listening_, Call::kOther);
  device_->destroy_stream(stream);
}

bool MeasuredDevice::is_capturing(StreamRef stream) {
  const Stopwatch watch(listening_, Call::kIsCapturing);
  return device_->is_capturing(stream);
}

bool MeasuredDevice::keep_while_graph_lives(StreamRef stream, std::shared_ptr<void> object) {
  const Stopwatch watch(listening_, Call::kOther);
  return device_->keep_while_graph_lives(stream, std::move(object));
}

bool MeasuredDevice::is_lost(int device) noexcept {
  return device_->is_lost(device);
}

void MeasuredDevice::synchronize_stream(StreamRef stream) {
  const Stopwatch watch(listening_, Call::kOther);
  device_->synchronize_stream(stream);
}

void MeasuredDevice::synchronize_device(int device) {
  const Stopwatch watch(listening_, Call::kOther);
  device_->synchronize_device(device);
}

EventHandle MeasuredDevice::create_event(int device) {
  const Stopwatch watch(listening_, Call::kEvents);
  EventHandle made = device_->create_event(device);
  ++events_;
  return made;
}

void MeasuredDevice::destroy_event(int device, EventHandle event) {
  const Stopwatch watch(listening_, Call::kEvents);
  device_->destroy_event(device, event);
  --events_;
}

void MeasuredDevice::record_event(StreamRef stream, EventHandle event) {
  const Stopwatch watch(listening_, Call::kEvents);
  device_->record_event(stream, event);
}

bool MeasuredDevice::query_event(int device, EventHandle event) {
  const Stopwatch watch(listening_, Call::kEvents);
  return device_->query_event(device, event);
}

void MeasuredDevice::wait_event(StreamRef stream, EventHandle event) {
  const Stopwatch watch(listening_, Call::kEvents);
  device_->wait_event(stream, event);
}

void MeasuredDevice::register_host_memory(int device, const HostMemory& memory) {
  const Stopwatch watch(listening_, Call::kOther);
  device_->register_host_memory(device, memory);
}

void MeasuredDevice::unregister_host_memory(void* data) {
  const Stopwatch watch(listening_, Call::kOther);
  device_->unregister_host_memory(data);
}

void MeasuredDevice::write_words(StreamRef stream, std::span<const WordWrite> writes) {
  const Stopwatch watch(listening_, Call::kWriteWords);
  device_->write_words(stream, writes);
}

void MeasuredDevice::wait_word(StreamRef stream, const std::uint64_t* word,
                               std::uint64_t at_least) {
  const Stopwatch watch(listening_, Call::kWaitWord);
  device_->wait_word(stream, word, at_least);
}

void MeasuredDevice::fill(StreamRef stream, void* data, std::uint32_t value,
                          std::size_t count_words) {
  const Stopwatch watch(listening_, Call::kOther);
  device_->fill(stream, data, value, count_words);
}

void MeasuredDevice::copy(StreamRef stream, void* to, const void* from, std::size_t size_bytes) {
  const Stopwatch watch(listening_, Call::kOther);
  device_->copy(stream, to, from, size_bytes);
}

void MeasuredDevice::copy_to_host(StreamRef stream, void* host, const void* from,
                                  std::size_t size_bytes) {
  const Stopwatch watch(listening_, Call::kOther);
  device_->copy_to_host(stream, host, from, size_bytes);
}

void MeasuredDevice::copy_from_host(StreamRef stream, void* to, const void* host,
                                    std::size_t size_bytes) {
  const Stopwatch watch(listening_, Call::kOther);
  device_->copy_from_host(stream, to, host, size_bytes);
}

}  // namespace limbo::bench
