// The part of sim::Client that enqueues.
#include <algorithm>
#include <array>
#include <cstring>
#include <utility>
#include <vector>

#include "allocator/device/sim_client.h"
#include "allocator/error.h"

namespace limbo::sim {

namespace {

class GraphHandle final : public SimGraph {
 public:
  GraphHandle(std::shared_ptr<const Graph> made, std::weak_ptr<Graves> graves)
      : graph(std::move(made)), graves_(std::move(graves)) {}
  // What the graph keeps lives until its launches have ended.
  ~GraphHandle() override {
    const auto graves = graves_.lock();
    if (graves != nullptr && !launched.over()) {
      graves->bury(std::move(graph), [last = std::move(launched)] { return last.over(); });
    }
  }

  // The ends of its launches.
  struct Launches {
    Streams* streams = nullptr;
    std::vector<Point> ends;
    [[nodiscard]] bool over() const {
      return std::all_of(ends.begin(), ends.end(),
                         [&](const Point end) { return streams->is_over(end); });
    }
  };

  std::shared_ptr<const Graph> graph;
  mutable std::mutex launching;  // guards launched
  mutable Launches launched;

 private:
  std::weak_ptr<Graves> graves_;
};

Op make_op(OpKind kind, std::uint64_t first = 0, std::uint64_t second = 0, std::uint64_t third = 0,
           std::uint64_t fourth = 0) {
  Op op;
  op.kind = kind;
  op.arguments[0] = first;
  op.arguments[1] = second;
  op.arguments[2] = third;
  op.arguments[3] = fourth;
  return op;
}

// The ranges of device memory that an entry touches.
std::vector<std::pair<std::uint64_t, std::size_t>> ranges_of(const Op& op) {
  switch (op.kind) {
    case OpKind::kFill:
      return {{op.arguments[0], op.arguments[2] * sizeof(std::uint32_t)}};
    case OpKind::kCopy:
      return {{op.arguments[0], op.arguments[2]}, {op.arguments[1], op.arguments[2]}};
    case OpKind::kKernel:
      if (op.arguments[2] == 0) return {};
      return {{op.arguments[1], op.arguments[2] * sizeof(std::uint32_t)}};
    default:
      return {};
  }
}

}  // namespace

std::uint64_t Client::stream_id(StreamRef stream) {
  return enter(CallKind::kStreamId, stream.device).streams.id(stream);
}

StreamHandle Client::create_stream(int device) {
  return enter(CallKind::kCreateStream, device).streams.create(device);
}

void Client::destroy_stream(StreamRef stream) {
  enter(CallKind::kDestroyStream, stream.device).streams.destroy(stream);
}

bool Client::is_capturing(StreamRef stream) {
  return enter(CallKind::kIsCapturing, stream.device).streams.is_capturing(stream);
}

void Client::synchronize_stream(StreamRef stream) {
  enter(CallKind::kSynchronize, stream.device).streams.synchronize(stream);
  check_lost("synchronize_stream", stream.device);
}

void Client::synchronize_device(int device) {
  enter(CallKind::kSynchronize, device).streams.synchronize_device(device);
  check_lost("synchronize_device", device);
}

EventHandle Client::create_event(int device) {
  return enter(CallKind::kCreateEvent, device).streams.create_event();
}

void Client::destroy_event(int device, EventHandle event) {
  enter(CallKind::kDestroyEvent, device).streams.destroy_event(event);
}

void Client::record_event(StreamRef stream, EventHandle event) {
  enter(CallKind::kRecordEvent, stream.device).streams.record(stream, event);
}

bool Client::query_event(int device, EventHandle event) {
  return enter(CallKind::kQueryEvent, device).streams.query(event);
}

bool Client::query_event_globally(int device, EventHandle event) {
  Parts& made = enter(CallKind::kQueryEvent, device);
  if (made.streams.invalidate_global_captures()) {
    throw Error(ErrorCode::kDeviceError,
                "query_event: operation not permitted when stream is capturing.");
  }
  return made.streams.query(event);
}

void Client::wait_event(StreamRef stream, EventHandle event) {
  enter(CallKind::kWaitEvent, stream.device).streams.wait_event(stream, event);
}

void Client::write_words(StreamRef stream, std::span<const WordWrite> writes) {
  Parts& made = enter(CallKind::kWriteWords, stream.device);
  if (writes.size() > kMaxBatchOperations) {
    throw Error(ErrorCode::kDeviceError, "write_words: invalid argument (" +
                                             std::to_string(writes.size()) +
                                             " writes in one batch, the limit is 255).");
  }
  if (writes.empty()) return;
  std::array<Write, kMaxBatchOperations> named;
  for (std::size_t i = 0; i < writes.size(); ++i) {
    named[i] = {made.host.name("write_words", writes[i].word, true), writes[i].value};
  }
  made.streams.enqueue("write_words", stream, make_op(OpKind::kWriteWords),
                       std::span(named).first(writes.size()));
}

void Client::wait_word(StreamRef stream, const std::uint64_t* word, std::uint64_t at_least) {
  Parts& made = enter(CallKind::kWaitWord, stream.device);
  const WordName name = made.host.name("wait_word", word, false);
  made.streams.enqueue("wait_word", stream, make_op(OpKind::kWaitWord, name, at_least));
}

void Client::fill(StreamRef stream, void* data, std::uint32_t value, std::size_t count_words) {
  Parts& made = enter(CallKind::kFill, stream.device);
  if (count_words == 0) return;
  const std::uint64_t offset =
      expect_mapped("fill", stream.device, stream, data, count_words * sizeof(std::uint32_t));
  made.streams.enqueue("fill", stream, make_op(OpKind::kFill, offset, value, count_words));
}

void Client::copy(StreamRef stream, void* to, const void* from, std::size_t size_bytes) {
  Parts& made = enter(CallKind::kCopy, stream.device);
  if (size_bytes == 0) return;
  const std::uint64_t target = expect_mapped("copy", -1, stream, to, size_bytes);
  const std::uint64_t source = expect_mapped("copy", -1, stream, from, size_bytes);
  made.streams.enqueue("copy", stream, make_op(OpKind::kCopy, target, source, size_bytes));
}

void Client::copy_to_host(StreamRef stream, void* host, const void* from, std::size_t size_bytes) {
  Parts& made = enter(CallKind::kCopy, stream.device);
  if (size_bytes == 0) return;
  static_cast<void>(expect_mapped("copy_to_host", -1, stream, from, size_bytes));
  made.streams.run_in_order("copy_to_host", stream, [&] { std::memcpy(host, from, size_bytes); });
  check_lost("copy_to_host", stream.device);
}

void Client::copy_from_host(StreamRef stream, void* to, const void* host, std::size_t size_bytes) {
  Parts& made = enter(CallKind::kCopy, stream.device);
  if (size_bytes == 0) return;
  static_cast<void>(expect_mapped("copy_from_host", -1, stream, to, size_bytes));
  made.streams.run_in_order("copy_from_host", stream, [&] { std::memcpy(to, host, size_bytes); });
  check_lost("copy_from_host", stream.device);
}

void Client::enqueue_kernel(StreamRef stream, std::chrono::microseconds duration, void* data,
                            std::size_t size_bytes, std::uint32_t value) {
  Parts& made = enter(CallKind::kKernel, stream.device);
  std::uint64_t offset = 0;
  const std::size_t words = data == nullptr ? 0 : size_bytes / sizeof(std::uint32_t);
  if (words != 0) {
    offset = expect_mapped("enqueue_kernel", stream.device, stream, data, size_bytes);
  }
  const auto time = static_cast<std::uint64_t>(std::chrono::nanoseconds(duration).count());
  made.streams.enqueue("enqueue_kernel", stream,
                       make_op(OpKind::kKernel, time, offset, words, value));
}

SimHold Client::hold_stream(StreamRef stream) {
  const Point point = enter("hold_stream", stream.device).streams.hold(stream);
  return {point.slot, point.position};
}

void Client::release_hold(SimHold hold) {
  parts().streams.release_hold({hold.slot % kMaxStreams, hold.position});
}

std::shared_ptr<const CapturePoint> Client::captured_so_far(StreamRef stream) noexcept {
  try {
    return enter("captured_so_far", stream.device).streams.captured_so_far(stream);
  } catch (...) {  // it cannot be told
    return nullptr;
  }
}

std::vector<bool> Client::come_before(std::span<const std::shared_ptr<const CapturePoint>> points,
                                      StreamRef stream) {
  Streams& streams = enter("come_before", stream.device).streams;
  std::vector<bool> answers;
  for (const auto& point : points) answers.push_back(streams.comes_before(point.get(), stream));
  return answers;
}

void Client::begin_capture(StreamRef stream, SimCaptureMode mode) {
  enter("begin_capture", stream.device).streams.begin_capture(stream, mode);
}

std::unique_ptr<SimGraph> Client::end_capture(StreamRef stream) {
  Parts& made = enter("end_capture", stream.device);
  return std::make_unique<GraphHandle>(made.streams.end_capture(stream), made.graves);
}

bool Client::keep_while_graph_lives(StreamRef stream, std::shared_ptr<void> object) {
  return enter(CallKind::kKeepInGraph, stream.device)
      .streams.keep_while_graph_lives(stream, object);
}

void Client::launch_graph(StreamRef stream, const SimGraph& graph) {
  const auto& handle = dynamic_cast<const GraphHandle&>(graph);
  Parts& made = enter("launch_graph", stream.device);
  // What was mapped when it was captured need not be so any more.
  for (const Graph::Node& node : handle.graph->nodes) {
    for (const auto& [offset, size_bytes] : ranges_of(node.op)) {
      if (!made.memory.maps(offset, size_bytes)) refuse_access("launch_graph", stream, size_bytes);
    }
  }
  const auto end = made.streams.launch(stream, *handle.graph);
  if (!end) return;
  const std::lock_guard lock(handle.launching);
  handle.launched.streams = &made.streams;
  std::erase_if(handle.launched.ends, [&](const Point past) { return made.streams.is_over(past); });
  handle.launched.ends.push_back(*end);
}

}  // namespace limbo::sim
