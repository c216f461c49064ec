// Events: an event is the place in a stream at which it was recorded last.
#include "allocator/device/sim_streams.h"
#include "allocator/error.h"

namespace limbo::sim {

Streams::Event& Streams::expect_event(const char* call, EventHandle event) {
  const auto found = events_.find(event);
  if (found == events_.end()) {
    throw Error(ErrorCode::kDeviceError,
                std::string(call) + ": invalid resource handle (no such event).");
  }
  return *found->second;
}

EventHandle Streams::create_event() {
  auto made = std::make_unique<Event>();
  const EventHandle handle = made.get();
  const std::lock_guard lock(events_mutex_);
  events_.emplace(handle, std::move(made));
  return handle;
}

void Streams::destroy_event(EventHandle event) {
  const std::lock_guard lock(events_mutex_);
  expect_event("destroy_event", event);
  events_.erase(event);
}

void Streams::record(StreamRef stream, EventHandle event) {
  const std::uint32_t slot = find("record_event", stream);
  {
    const std::lock_guard lock(events_mutex_);
    expect_event("record_event", event);
  }
  std::shared_ptr<Capture> capture = captures_.of(slot);
  CaptureClock clock = captures_.clock(slot);
  std::optional<Point> point;
  // May wait for room in the stream: not under the events' mutex.
  if (capture == nullptr) point = enqueue("record_event", stream, Op{});
  const std::lock_guard lock(events_mutex_);
  Event& recorded = expect_event("record_event", event);
  recorded.point = point;
  recorded.capture = std::move(capture);
  recorded.clock = std::move(clock);
}

bool Streams::query(EventHandle event) {
  std::optional<Point> point;
  {
    const std::lock_guard lock(events_mutex_);
    const Event& asked = expect_event("query_event", event);
    if (asked.capture != nullptr) {
      throw Error(ErrorCode::kDeviceError,
                  "query_event: operation not permitted on an event last recorded in a capturing "
                  "stream.");
    }
    point = asked.point;
  }
  if (!point || reached(*point)) return true;
  if (!link_.lost()) return false;
  throw Error(ErrorCode::kDeviceError,
              "query_event: device lost (the companion process has ended).");
}

void Streams::wait_event(StreamRef stream, EventHandle event) {
  const std::uint32_t slot = find("wait_event", stream);
  Event copy;
  {
    const std::lock_guard lock(events_mutex_);
    copy = expect_event("wait_event", event);
  }
  if (copy.capture != nullptr) {
    // The waiting stream is drawn into the capture; the graph keeps the order of the calls.
    if (captures_.join(slot, copy.capture, copy.clock)) return;
    throw Error(ErrorCode::kDeviceError,
                "wait_event: the event was recorded in another capture, or in one that is over.");
  }
  if (!copy.point || reached(*copy.point)) return;
  Op op;
  op.kind = OpKind::kWaitPosition;
  op.arguments[0] = copy.point->slot;
  op.arguments[1] = copy.point->position;
  enqueue("wait_event", stream, op);
}

// ---- order inside a capture ---------------------------------------------------------------------

namespace {
struct SimCapturePoint final : CapturePoint {
  std::weak_ptr<const Capture> capture;
  std::uint32_t slot = 0;
  std::uint64_t entries = 0;  // of the slot
};
}  // namespace

std::shared_ptr<const CapturePoint> Streams::captured_so_far(StreamRef stream) {
  const std::uint32_t slot = find("captured_so_far", stream);
  const std::shared_ptr<Capture> capture = captures_.of(slot);
  if (capture == nullptr) return nullptr;
  auto point = std::make_shared<SimCapturePoint>();
  point->capture = capture;
  point->slot = slot;
  point->entries = captures_.clock(slot)[slot];
  return point;
}

bool Streams::comes_before(const CapturePoint* point, StreamRef stream) {
  const auto* asked = dynamic_cast<const SimCapturePoint*>(point);
  const std::uint32_t slot = find("comes_before", stream);
  const std::shared_ptr<Capture> capture = captures_.of(slot);
  if (asked == nullptr || capture == nullptr || asked->capture.lock() != capture) return false;
  return captures_.clock(slot)[asked->slot] >= asked->entries;
}

}  // namespace limbo::sim
