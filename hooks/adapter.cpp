#include "hooks/adapter.h"

#include <c10/core/impl/GPUTrace.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/util/Exception.h>
#include <c10/util/ThreadLocalDebugInfo.h>

#include <bit>
#include <cstdint>
#include <cstdio>
#include <cstdlib>

#include "hooks/current_stream.h"
#include "hooks/error_text.h"
#include "hooks/install.h"
#include "hooks/out_of_memory.h"
#include "hooks/process.h"
#include "hooks/received_storage.h"
#include "ipc/fork_guard.h"

namespace limbo {
namespace {

c10::Device cuda_device(int device) {
  return {c10::DeviceType::CUDA, static_cast<c10::DeviceIndex>(device)};
}

void report_to_profiler(void* data, std::int64_t change_bytes, int device) {
  const MemoryTotals totals = allocator_in_use().totals(device);
  c10::reportMemoryUsageToProfiler(
      data, change_bytes, static_cast<std::size_t>(totals.allocated_bytes),
      static_cast<std::size_t>(totals.reserved_bytes), cuda_device(device));
}

void trace_allocation(void* data) {
  if (const auto* trace = c10::impl::GPUTrace::get_trace()) {
    (*trace)->trace_gpu_memory_allocation(c10::kCUDA, std::bit_cast<std::uintptr_t>(data));
  }
}

void trace_deallocation(void* data) {
  if (const auto* trace = c10::impl::GPUTrace::get_trace()) {
    (*trace)->trace_gpu_memory_deallocation(c10::kCUDA, std::bit_cast<std::uintptr_t>(data));
  }
}

// The allocator while calls need nothing besides it: it is in use in this process (and not only in a
// parent of it), installation is complete, caching is on, and no uncached memory is out. Null
// otherwise. So that a hit asks for all of this in one load. Every change of one of these calls
// update_plain_allocator before anybody can depend on it.
std::atomic<void*>& plain_word = fork_guard::own_word();

Allocator* plain_allocator() noexcept {
  return static_cast<Allocator*>(plain_word.load(std::memory_order_acquire));
}

// Whether a profiler or a tracer may want to hear of the call. A profiler that does not care for
// memory is among them; it is asked where it is told (c10 asks the same question first, and has no
// quicker one: a profiler is a thread's own).
bool watched() {
  return c10::impl::GPUTrace::get_trace() != nullptr ||
         c10::ThreadLocalDebugInfo::get(c10::DebugInfoKind::PROFILER_STATE) != nullptr;
}

void tell_of_allocation(Allocator& allocator, void* data, int device) {
  trace_allocation(data);
  if (!c10::memoryProfilingEnabled()) return;
  if (const auto block = allocator.find(data)) {
    report_to_profiler(data, static_cast<std::int64_t>(block->size_bytes), device);
  }
}

}  // namespace

Adapter& adapter() {
  static auto* made = new Adapter;
  return *made;
}

std::shared_ptr<c10::cuda::CUDACachingAllocator::CUDAAllocator> shared_adapter() {
  return {&adapter(), [](auto*) {}};
}

// ---- taking and giving --------------------------------------------------------------------------

bool Adapter::caching() const noexcept {
  static const bool forbidden = std::getenv("PYTORCH_NO_CUDA_MEMORY_CACHING") != nullptr;
  return !forbidden && enabled_.load(std::memory_order_relaxed);
}

void Adapter::update_plain_allocator() {
  const std::lock_guard lock(plain_mutex_);
  const bool plain =
      in_use() && !in_forked_child() && installation_complete() && caching() && !uncached_.any();
  plain_word.store(plain ? &allocator_in_use() : nullptr, std::memory_order_release);
}

void* Adapter::take(std::size_t size_bytes, StreamRef stream) {
  auto* const allocator = plain_allocator();
  if (allocator == nullptr || size_bytes - 1 >= kMostRequestBytes - 1) [[unlikely]] {
    return take_with_care(size_bytes, stream);
  }
  return for_torch([&] {
    void* data = allocator->allocate(size_bytes, stream);
    if (watched()) [[unlikely]] {
      tell_of_allocation(*allocator, data, stream.device);
    }
    return data;
  });
}

void* Adapter::take_with_care(std::size_t size_bytes, StreamRef stream) {
  if (size_bytes == 0) return nullptr;
  return for_torch([&] {
    if (size_bytes >= kMostRequestBytes) throw_request_too_large();
    if (!installation_complete()) complete_installation();
    if (!caching()) {
      void* data = uncached_.allocate(size_bytes, stream.device);
      update_plain_allocator();
      trace_allocation(data);
      return data;
    }
    auto& allocator = allocator_in_use();
    void* data = allocator.allocate(size_bytes, stream);
    update_plain_allocator();
    tell_of_allocation(allocator, data, stream.device);
    return data;
  });
}

void Adapter::give(void* data) {
  auto* const allocator = plain_allocator();
  if (allocator == nullptr || watched()) [[unlikely]] {
    give_with_care(data);
    return;
  }
  for_torch([&] { allocator->free(data); });
}

void Adapter::give_with_care(void* data) {
  if (data == nullptr || in_forked_child()) return;
  for_torch([&] {
    trace_deallocation(data);
    if (uncached_.any() && uncached_.free(data)) {
      update_plain_allocator();
      return;
    }
    auto& allocator = allocator_in_use();
    if (!c10::memoryProfilingEnabled()) {
      allocator.free(data);
      return;
    }
    const auto block = allocator.find(data);
    allocator.free(data);
    if (block) {
      report_to_profiler(data, -static_cast<std::int64_t>(block->size_bytes), block->stream.device);
    }
  });
}

void Adapter::delete_block(void* data) noexcept {
  try {
    adapter().give(data);
  } catch (...) {
    // A destructor is running: there is nobody to throw to.
    std::fprintf(stderr, "limbo: freeing %p failed: %s\n", data,
                 current_exception_report().text.c_str());
  }
}

c10::DataPtr Adapter::allocate(std::size_t size_bytes) {
  const StreamRef place = for_torch(current_place);
  void* data = take(size_bytes, place);
  if (data != nullptr) give_context_once(place.device);
  return {data, data, &delete_block, cuda_device(place.device)};
}

c10::DeleterFnPtr Adapter::raw_deleter() const {
  return &delete_block;
}

void* Adapter::raw_alloc(std::size_t size_bytes) {
  if (size_bytes == 0) return nullptr;
  const StreamRef place = current_place();
  void* data = take(size_bytes, place);
  give_context_once(place.device);
  return data;
}

void* Adapter::raw_alloc_with_stream(std::size_t size_bytes, cudaStream_t stream) {
  if (size_bytes == 0) return nullptr;
  return take(size_bytes, {current_device(), stream});
}

bool Adapter::is_foreign(void* data) {
  if (data == nullptr || in_forked_child() || uncached_.has(data)) return false;
  return !in_use() || !allocator_in_use().find(data);
}

void Adapter::raw_delete(void* data) {
  if (auto* const plug_in = plug_in_.load(); plug_in != nullptr && is_foreign(data)) {
    plug_in->raw_delete(data);
    return;
  }
  give(data);
}

// ---- streams ------------------------------------------------------------------------------------

bool Adapter::record_use(const c10::DataPtr& data, StreamRef stream) {
  if (data.get() == nullptr || in_forked_child()) return false;
  return for_torch([&] {
    if (record_received(data, stream)) return true;
    return in_use() && allocator_in_use().record_stream(data.get(), stream);
  });
}

void Adapter::recordStream(const c10::DataPtr& data, c10::cuda::CUDAStream stream) {
  record_use(data, to_stream_ref(stream.unwrap()));
}

void Adapter::recordStream(const c10::DataPtr& data, c10::Stream stream) {
  record_use(data, to_stream_ref(stream));
}

// ---- the rest of memory -------------------------------------------------------------------------

void Adapter::init(int /*device_count*/) {
  take_over_initialization();
  complete_installation();
}

void Adapter::take_over_initialization() {
  initialized_.store(true);
  settle_fraction();
}

bool Adapter::initialized() {
  return initialized_.load() && !hidden_.load();
}

void Adapter::enable(bool value) {
  enabled_.store(value, std::memory_order_relaxed);
  update_plain_allocator();
}

bool Adapter::isEnabled() const {
  return enabled_.load(std::memory_order_relaxed);
}

void* Adapter::getBaseAllocation(void* data, std::size_t* size_bytes) {
  const auto block = for_torch([&] { return allocator_in_use().find(data); });
  TORCH_CHECK(block.has_value(), "invalid device pointer: ", data);
  const DriverAllocation whole =
      for_torch([&] { return driver_allocation_of(allocator_in_use().device(), *block); });
  if (size_bytes != nullptr) *size_bytes = whole.size_bytes;
  return whole.base;
}

c10::cuda::CUDACachingAllocator::ShareableHandle Adapter::shareIpcHandle(void* data) {
  const auto block = for_torch([&] { return allocator_in_use().find(data); });
  TORCH_CHECK(block.has_value(), "invalid device pointer: ", data);
  return for_torch([&] { return make_stock_handle(allocator_in_use().device(), *block, data); });
}

std::shared_ptr<void> Adapter::getIpcDevPtr(std::string handle) {
  return for_torch(
      [&] { return mappings_.open(allocator_in_use().device(), handle, current_device()); });
}

void Adapter::copy_data(void* to, const void* from, std::size_t size_bytes) const {
  if (simulated()) {
    for_torch([&] {
      Device& device = allocator_in_use().device();
      const StreamRef stream = current_stream(current_device());
      device.copy(stream, to, from, size_bytes);
      device.synchronize_stream(stream);
    });
    return;
  }
  C10_CUDA_CHECK(cudaMemcpy(to, from, size_bytes, cudaMemcpyDeviceToDevice));
}

void Adapter::enablePeerAccess(c10::DeviceIndex device, c10::DeviceIndex device_to_access) {
  if (simulated()) return;  // every simulated GPU reaches the others
  const c10::cuda::CUDAGuard guard(device);
  const cudaError_t result = cudaDeviceEnablePeerAccess(device_to_access, 0);
  if (result == cudaErrorPeerAccessAlreadyEnabled) {
    (void)cudaGetLastError();  // as wanted; do not leave it for the next call to find
  } else {
    C10_CUDA_CHECK(result);
  }
}

cudaError_t Adapter::memcpyAsync(void* to, int to_device, const void* from, int from_device,
                                 std::size_t size_bytes, cudaStream_t stream, bool p2p_enabled) {
  if (simulated()) {
    for_torch([&] { allocator_in_use().device().copy({to_device, stream}, to, from, size_bytes); });
    return cudaSuccess;
  }
  // Between devices without peer access the runtime finds the way by itself for memory of cudaMalloc,
  // as Limbo's is; for other memory it must be told the devices.
  const auto ours = [](const void* data) {
    return in_use() && allocator_in_use().find(data).has_value();
  };
  if (!p2p_enabled && to_device != from_device && !(ours(to) && ours(from))) {
    return cudaMemcpyPeerAsync(to, to_device, from, from_device, size_bytes, stream);
  }
  return cudaMemcpyAsync(to, from, size_bytes, cudaMemcpyDeviceToDevice, stream);
}

}  // namespace limbo
