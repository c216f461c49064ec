#include "allocator/device/sim_streams.h"

#include <algorithm>
#include <cstring>

#include "allocator/device/sim_futex.h"
#include "allocator/error.h"

namespace limbo::sim {

namespace {

// Handles look like the driver's: aligned, not null, and none of the runtime's special ones (1, 2).
constexpr std::uintptr_t kFirstHandle = 0x5111'0000;
constexpr std::uintptr_t kHandleStep = 64;
// The names that CUDA gives to the default stream and to each thread's own.
constexpr std::uintptr_t kLegacyHandle = 1;
constexpr std::uintptr_t kPerThreadHandle = 2;
// How long a waiter sleeps before it looks whether the companion still lives.
constexpr std::chrono::milliseconds kLookInterval{50};

[[noreturn]] void fail_stream_call(const char* call, const std::string& words) {
  throw Error(ErrorCode::kDeviceError, std::string(call) + ": " + words + ".");
}

}  // namespace

Streams::Streams(Link& link, int devices) : link_(link) {
  for (int device = 0; device < devices; ++device) {
    Slot& slot = slots_[static_cast<std::size_t>(device)];
    slot.device = device;
    slot.id = next_id_.fetch_add(1);
    queue(static_cast<std::uint32_t>(device)).device = static_cast<std::uint32_t>(device);
  }
  link_.control().streams_used.store(kMaxDevices);
}

std::uint32_t Streams::find(const char* call, StreamRef stream) const {
  const auto value = reinterpret_cast<std::uintptr_t>(stream.handle);
  if (value <= kLegacyHandle) return static_cast<std::uint32_t>(stream.device);
  if (value == kPerThreadHandle) {
    throw Error(ErrorCode::kBadArgument,
                std::string(call) + ": cudaStreamPerThread was named as a stream.",
                "Its meaning changes with the thread: use a stream of your own, or the default "
                "one.");
  }
  const std::uintptr_t slot = (value - kFirstHandle) / kHandleStep;
  if (value < kFirstHandle || (value - kFirstHandle) % kHandleStep != 0 || slot < kMaxDevices ||
      slot >= kMaxStreams || slots_[slot].id.load() == 0 ||
      slots_[slot].device.load() != stream.device) {
    fail_stream_call(call, "invalid resource handle (no such stream of device " +
                               std::to_string(stream.device) + ")");
  }
  return static_cast<std::uint32_t>(slot);
}

std::uint64_t Streams::id(StreamRef stream) {
  const std::uint32_t slot = find("stream_id", stream);
  if (captures_.of(slot) != nullptr) {
    captures_.invalidate(slot);
    fail_stream_call("stream_id", "operation not permitted when stream is capturing");
  }
  return slots_[slot].id.load();
}

StreamHandle Streams::create(int device) {
  const std::lock_guard lock(streams_mutex_);
  // The most recently destroyed one that has come to its end: handles are reused early.
  const auto usable = std::find_if(free_slots_.rbegin(), free_slots_.rend(), [&](auto slot) {
    return queue(slot).completed.load() == queue(slot).tail.load();
  });
  std::uint32_t slot = used_slots_;
  if (usable != free_slots_.rend()) {
    slot = *usable;
    free_slots_.erase(std::next(usable).base());
  } else if (used_slots_ == kMaxStreams) {
    fail_stream_call("create_stream",
                     "out of memory (" + std::to_string(kMaxStreams) + " streams exist)");
  } else {
    ++used_slots_;
  }
  queue(slot).device = static_cast<std::uint32_t>(device);
  link_.control().streams_used.store(used_slots_);
  slots_[slot].device = device;
  slots_[slot].id = next_id_.fetch_add(1);
  return reinterpret_cast<StreamHandle>(kFirstHandle + slot * kHandleStep);
}

void Streams::destroy(StreamRef stream) {
  const std::uint32_t slot = find("destroy_stream", stream);
  if (slot < kMaxDevices)
    fail_stream_call("destroy_stream", "invalid resource handle (default stream)");
  if (captures_.of(slot) != nullptr) {
    fail_stream_call("destroy_stream", "operation not permitted when stream is capturing");
  }
  const std::lock_guard lock(streams_mutex_);
  slots_[slot].id = 0;
  free_slots_.push_back(slot);
}

void Streams::pass_gate(int device) {
  Gate& gate = gates_[static_cast<std::size_t>(device)];
  std::unique_lock lock(gate.mutex);
  gate.opened.wait(lock, [&] { return gate.closing == 0; });
}

bool Streams::reached(Point point) {
  return queue(point.slot).completed.load() >= point.position;
}

void Streams::wait_signal(std::uint32_t slot, const std::function<bool()>& over) {
  StreamQueue& waited = queue(slot);
  if (over()) return;
  waited.waiters.fetch_add(1);
  while (true) {
    const std::uint32_t signal = waited.signal.load();
    if (over()) break;
    if (link_.lost()) {
      waited.waiters.fetch_sub(1);
      fail_stream_call("wait", "device lost (the companion process has ended)");
    }
    futex_wait(waited.signal, signal, kLookInterval);
  }
  waited.waiters.fetch_sub(1);
}

void Streams::wait_for(Point point) {
  wait_signal(point.slot, [&] { return reached(point); });
}

// Takes the next entry of a slot whose mutex is held.
Point Streams::put(std::uint32_t slot, const Op& op, std::span<const Write> writes) {
  StreamQueue& to = queue(slot);
  const std::uint64_t tail = to.tail.load(std::memory_order_relaxed);
  wait_signal(slot, [&] { return tail - to.completed.load() < kMaxOutstanding; });
  Op& entry = to.ring[tail % kRingEntries];
  entry = op;
  if (!writes.empty()) {
    entry.count = static_cast<std::uint32_t>(writes.size());
    Write* const room =
        writes.size() <= kInlineWrites ? entry.writes : to.overflow[tail % kRingEntries];
    std::copy(writes.begin(), writes.end(), room);
  }
  to.tail.store(tail + 1);
  link_.ring();
  return {slot, tail + 1};
}

std::optional<Point> Streams::enqueue(const char* call, StreamRef stream, const Op& op,
                                      std::span<const Write> writes) {
  const std::uint32_t slot = find(call, stream);
  if (captures_.add(slot, op, writes)) return std::nullopt;
  pass_gate(stream.device);
  const std::lock_guard lock(slots_[slot].mutex);
  return put(slot, op, writes);
}

void Streams::run_in_order(const char* call, StreamRef stream, const std::function<void()>& work) {
  const std::uint32_t slot = find(call, stream);
  if (captures_.of(slot) != nullptr) {
    captures_.invalidate(slot);
    fail_stream_call(call, "operation not permitted when stream is capturing");
  }
  const Point point = hold(stream);
  StreamQueue& held = queue(slot);
  wait_signal(slot, [&] { return held.holding.load() >= point.position || reached(point); });
  work();
  release_hold(point);
}

Point Streams::hold(StreamRef stream) {
  Op op;
  op.kind = OpKind::kHold;
  const auto point = enqueue("hold_stream", stream, op);
  if (!point) fail_stream_call("hold_stream", "operation not permitted when stream is capturing");
  return *point;
}

void Streams::release_hold(Point point) {
  StreamQueue& held = queue(point.slot);
  std::uint64_t released = held.released.load();
  while (released < point.position &&
         !held.released.compare_exchange_weak(released, point.position)) {
  }
  link_.ring();
}

void Streams::synchronize(StreamRef stream) {
  const std::uint32_t slot = find("synchronize_stream", stream);
  if (captures_.of(slot) != nullptr) {
    captures_.invalidate(slot);
    fail_stream_call("synchronize_stream", "operation not permitted when stream is capturing");
  }
  wait_for({slot, queue(slot).tail.load()});
}

void Streams::synchronize_device(int device) {
  std::vector<Point> ends;
  const std::uint32_t used = link_.control().streams_used.load();
  for (std::uint32_t slot = 0; slot < used; ++slot) {
    if (static_cast<int>(queue(slot).device.load()) != device) continue;
    ends.push_back({slot, queue(slot).tail.load()});
  }
  for (const Point end : ends) wait_for(end);
}

void Streams::with_idle_device(int device, const std::function<void()>& work) {
  Gate& gate = gates_[static_cast<std::size_t>(device)];
  {
    const std::lock_guard lock(gate.mutex);
    ++gate.closing;
  }
  const auto open_gate = [&] {
    const std::lock_guard lock(gate.mutex);
    if (--gate.closing == 0) gate.opened.notify_all();
  };
  try {
    synchronize_device(device);
    work();
  } catch (...) {
    open_gate();
    throw;
  }
  open_gate();
}

void Streams::begin_capture(StreamRef stream, SimCaptureMode mode) {
  const std::uint32_t slot = find("begin_capture", stream);
  if (slot < kMaxDevices) {
    fail_stream_call("begin_capture",
                     "operation not permitted (the default stream cannot be captured)");
  }
  if (!captures_.begin(slot, mode))
    fail_stream_call("begin_capture", "illegal state (capturing already)");
}

std::shared_ptr<const Graph> Streams::end_capture(StreamRef stream) {
  const std::shared_ptr<Capture> capture = captures_.end(find("end_capture", stream));
  if (capture == nullptr)
    fail_stream_call("end_capture", "illegal state (no capture began on this stream)");
  if (!capture->valid) {
    fail_stream_call("end_capture", "operation failed due to a previous error during capture");
  }
  return capture->graph;
}

std::optional<Point> Streams::launch(StreamRef stream, const Graph& graph) {
  std::optional<Point> last;
  for (const Graph::Node& node : graph.nodes) {
    last = enqueue("launch_graph", stream, node.op, node.writes);
  }
  return last;
}

bool Streams::keep_while_graph_lives(StreamRef stream, const std::shared_ptr<void>& object) {
  return captures_.keep(find("keep_while_graph_lives", stream), object);
}

bool Streams::invalidate_global_captures() {
  return captures_.invalidate_global();
}

bool Streams::is_capturing(StreamRef stream) {
  return captures_.of(find("is_capturing", stream)) != nullptr;
}

}  // namespace limbo::sim
