#include "allocator/device/sim_client.h"

#include <charconv>
#include <cstdlib>
#include <cstring>
#include <string_view>

#include "allocator/error.h"

namespace limbo::sim {

namespace {

[[noreturn]] void fail_client_call(std::string_view call, const std::string& words) {
  throw Error(ErrorCode::kDeviceError, std::string(call) + ": " + words + ".");
}

// LIMBO_SIM_VISIBLE: indices, joined by commas. Empty or unset: all.
std::vector<std::uint32_t> visible_devices(std::uint32_t devices) {
  std::vector<std::uint32_t> visible;
  const char* const text = std::getenv("LIMBO_SIM_VISIBLE");
  if (text == nullptr) {
    for (std::uint32_t device = 0; device < devices; ++device) visible.push_back(device);
    return visible;
  }
  std::string_view rest(text);
  while (!rest.empty()) {
    const std::string_view part = rest.substr(0, rest.find(','));
    std::uint32_t index = devices;
    const auto [end, error] = std::from_chars(part.data(), part.data() + part.size(), index);
    if (error != std::errc{} || end != part.data() + part.size() || index >= devices) {
      throw Error(ErrorCode::kBadArgument, "LIMBO_SIM_VISIBLE is \"" + std::string(text) + "\".",
                  "Give indices from 0 to " + std::to_string(devices - 1) +
                      ", joined by commas; nothing at all for no device.");
    }
    visible.push_back(index);
    rest.remove_prefix(std::min(part.size() + 1, rest.size()));
  }
  return visible;
}

}  // namespace

Client::Parts::Parts(const MachineChoice& choice)
    : link(choice),
      visible(visible_devices(link.machine().devices())),
      memory(link.machine()),
      streams(link, static_cast<int>(visible.size())),
      host(link) {}

Client::Client() {
  if (const char* const plan = std::getenv("LIMBO_SIM_FAULTS")) faults_.add(plan);
}

Client::~Client() {
  // A fork child must not touch what its parent uses; the kernel takes its copies back.
  if (owned_parts_ != nullptr && owned_parts_->link.in_fork_child()) {
    static_cast<void>(owned_parts_.release());
  }
}

Client::Parts& Client::parts() {
  if (Parts* const made = parts_.load(std::memory_order_acquire)) {
    if (made->link.in_fork_child()) {
      throw Error(ErrorCode::kDeviceError,
                  "This process was forked after its parent had used the simulated device.",
                  "Start processes by spawn, or fork before the device is used.");
    }
    return *made;
  }
  const std::lock_guard lock(parts_mutex_);
  if (owned_parts_ == nullptr) {
    auto made = std::make_unique<Parts>(machine_from_environment());
    if (held_descriptor_ >= 0) {
      Request request;
      request.kind = RequestKind::kHoldDescriptor;
      made->link.request("hold_while_work_runs", request, held_descriptor_);
    }
    owned_parts_ = std::move(made);
    parts_.store(owned_parts_.get(), std::memory_order_release);
  }
  return *owned_parts_;
}

Client::Parts& Client::enter(std::string_view call, int device) {
  Parts& made = parts();
  if (device < 0 || static_cast<std::size_t>(device) >= made.visible.size()) {
    fail_client_call(call, "invalid device ordinal (" + std::to_string(device) + " of " +
                               std::to_string(made.visible.size()) + ")");
  }
  check_lost(call, device);
  return made;
}

Client::Parts& Client::enter(CallKind kind, int device, bool* full) {
  Parts& made = enter(call_kind_name(kind), device);
  const bool refused = faults_.on_call(kind);
  if (full != nullptr) *full = refused;
  return made;
}

void Client::check_lost(std::string_view call, int device) {
  const auto index = static_cast<std::size_t>(device);
  if (!lost_[index].load(std::memory_order_acquire)) return;
  const std::lock_guard lock(lost_mutex_);
  fail_client_call(call, lost_words_[index]);
}

bool Client::is_lost(int device) noexcept {
  if (device < 0 || static_cast<std::uint32_t>(device) >= kMaxDevices) return false;
  if (lost_[static_cast<std::size_t>(device)].load(std::memory_order_acquire)) return true;
  const Parts* const made = parts_.load(std::memory_order_acquire);
  return made != nullptr && made->link.lost();
}

void Client::inject_sticky_error(int device, const std::string& words) {
  Parts& made = enter("inject_sticky_error", device);
  const auto index = static_cast<std::size_t>(device);
  made.link.control().failed_devices.fetch_or(1U << index);
  made.streams.synchronize_device(device);
  const std::lock_guard lock(lost_mutex_);
  if (lost_[index].load(std::memory_order_relaxed)) return;
  lost_words_[index] = words;
  lost_[index].store(true, std::memory_order_release);
}

std::uint64_t Client::expect_mapped(const char* call, int for_device, StreamRef stream,
                                    const void* data, std::size_t size_bytes) {
  const auto offset = parts().memory.file_offset(for_device, data, size_bytes);
  if (!offset) refuse_access(call, stream, size_bytes);
  return *offset;
}

void Client::refuse_access(const char* call, StreamRef stream, std::size_t size_bytes) {
  inject_sticky_error(stream.device, "an illegal memory access was encountered");
  fail_client_call(call, "an illegal memory access was encountered (not all of " +
                             std::to_string(size_bytes) + " bytes are mapped for device " +
                             std::to_string(stream.device) + " in this process)");
}

int Client::device_count() {
  return static_cast<int>(parts().visible.size());
}

Uuid Client::uuid(int device) {
  Parts& made = parts();
  if (device < 0 || device >= device_count()) fail_client_call("uuid", "invalid device ordinal");
  return made.link.machine().uuid(made.visible[static_cast<std::size_t>(device)]);
}

std::size_t Client::total_memory_bytes(int device) {
  Parts& made = enter("total_memory_bytes", device);
  return made.link.machine()
      .memory_info(made.visible[static_cast<std::size_t>(device)])
      .total_bytes;
}

MemoryInfo Client::memory_info(int device) {
  Parts& made = enter(CallKind::kMemoryInfo, device);
  return made.link.machine().memory_info(made.visible[static_cast<std::size_t>(device)]);
}

std::vector<MemoryUser> Client::memory_users(int device) {
  Parts& made = enter("memory_users", device);
  return made.link.machine().memory_users(made.visible[static_cast<std::size_t>(device)]);
}

bool Client::has_stream_memory_operations(int device) {
  static_cast<void>(enter("has_stream_memory_operations", device));
  return true;
}

void* Client::try_allocate(int device, std::size_t size_bytes) {
  bool full = false;
  Parts& made = enter(CallKind::kAllocate, device, &full);
  if (size_bytes == 0) fail_client_call("try_allocate", "invalid argument (0 bytes)");
  if (full) return nullptr;
  return made.memory.allocate(device, made.visible[static_cast<std::size_t>(device)], size_bytes);
}

void Client::free(int device, void* base) {
  Parts& made = enter(CallKind::kFree, device);
  void* const leaving = made.memory.begin_free(device, base);
  made.streams.synchronize_device(device);
  made.memory.end_removal(leaving);
}

DriverAllocation Client::driver_allocation(int device, const void* data) {
  return enter("driver_allocation", device).memory.allocation(device, data);
}

MemoryHandle Client::export_memory(int device, void* base) {
  return enter(CallKind::kExport, device).memory.handle(device, base);
}

void* Client::open_memory(int device, const MemoryHandle& handle) {
  return enter(CallKind::kOpen, device).memory.open(device, handle);
}

void Client::close_memory(int device, void* base) {
  Parts& made = enter(CallKind::kClose, device);
  void* const leaving = made.memory.begin_close(device, base);
  made.streams.with_idle_device(device, [&] {
    if (leaving != nullptr) made.memory.end_removal(leaving);
  });
}

void Client::register_host_memory(int device, const HostMemory& memory) {
  enter(CallKind::kRegister, device).host.add(memory);
}

void Client::unregister_host_memory(void* data) {
  enter(CallKind::kUnregister, 0).host.remove(data);
}

void Client::hold_while_work_runs(int fd) {
  {
    const std::lock_guard lock(parts_mutex_);
    if (owned_parts_ == nullptr) {
      held_descriptor_ = fd;
      return;
    }
  }
  Request request;
  request.kind = RequestKind::kHoldDescriptor;
  parts().link.request("hold_while_work_runs", request, fd);
}

void Client::wait_until_idle() {
  for (int device = 0; device < device_count(); ++device) {
    parts().streams.synchronize_device(device);
  }
}

SimDevice::Balance Client::balance() {
  Parts& made = parts();
  const Memory::Counts counts = made.memory.counts();
  return {counts.allocated, counts.opened, made.link.machine().live_allocations(),
          made.link.machine().live_processes()};
}

std::int64_t Client::companion_pid() {
  return parts().link.companion_pid();
}

}  // namespace limbo::sim
