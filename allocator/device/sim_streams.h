// The client's side of streams and events: taking entries, waiting, capture.
#pragma once

#include <array>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "allocator/device/capture_order.h"
#include "allocator/device/device.h"
#include "allocator/device/sim_capture.h"
#include "allocator/device/sim_device.h"
#include "allocator/device/sim_link.h"
#include "allocator/device/sim_queue.h"

namespace limbo::sim {

// A place in a stream: reached when the stream has completed `position` entries.
struct Point {
  std::uint32_t slot = 0;
  std::uint64_t position = 0;
};

// Thread-safe. A slot's mutex is held while its stream is full, as the driver's is: others who
// enqueue on that stream wait too, other streams go on. All other locks are leaves.
class Streams {
 public:
  Streams(Link& link, int devices);

  [[nodiscard]] std::uint64_t id(StreamRef stream);
  [[nodiscard]] StreamHandle create(int device);
  void destroy(StreamRef stream);

  // Takes an entry, blocking while the stream is full or its device closes a mapping. On a
  // capturing stream the entry becomes the graph's, and the result is nothing.
  std::optional<Point> enqueue(const char* call, StreamRef stream, const Op& op,
                               std::span<const Write> writes = {});

  // Runs `work` here while the stream stands still at this place.
  void run_in_order(const char* call, StreamRef stream, const std::function<void()>& work);

  // Holds the stream at this place until release_hold. Returns the place.
  [[nodiscard]] Point hold(StreamRef stream);
  void release_hold(Point point);

  // Wait for what is enqueued by now.
  void synchronize(StreamRef stream);
  void synchronize_device(int device);

  // Lets nobody enqueue on `device` until its streams have come to their ends and `work` is done.
  void with_idle_device(int device, const std::function<void()>& work);

  [[nodiscard]] EventHandle create_event();
  void destroy_event(EventHandle event);
  void record(StreamRef stream, EventHandle event);
  [[nodiscard]] bool query(EventHandle event);
  void wait_event(StreamRef stream, EventHandle event);

  [[nodiscard]] bool is_capturing(StreamRef stream);
  // See CaptureOrder.
  [[nodiscard]] std::shared_ptr<const CapturePoint> captured_so_far(StreamRef stream);
  [[nodiscard]] bool comes_before(const CapturePoint* point, StreamRef stream);
  void begin_capture(StreamRef stream, SimCaptureMode mode);
  // The graph; throws when the capture was invalidated.
  [[nodiscard]] std::shared_ptr<const Graph> end_capture(StreamRef stream);
  // Returns the place behind the launch; nothing where it was captured or is empty.
  std::optional<Point> launch(StreamRef stream, const Graph& graph);
  bool keep_while_graph_lives(StreamRef stream, const std::shared_ptr<void>& object);
  // Whether the stream has come past it, or never will.
  [[nodiscard]] bool is_over(Point point) { return reached(point) || link_.lost(); }
  // What a call made in global mode does to captures: see SimDevice::query_event_globally.
  // True when there was one.
  bool invalidate_global_captures();

 private:
  struct Slot {
    std::mutex mutex;                  // one enqueue at a time
    std::atomic<std::uint64_t> id{0};  // 0: no stream
    std::atomic<int> device{-1};
  };
  struct Gate {
    std::mutex mutex;  // guards closing
    std::condition_variable opened;
    int closing = 0;
  };
  struct Event {
    std::optional<Point> point;        // of the last record
    std::shared_ptr<Capture> capture;  // the last record was captured by it
    CaptureClock clock;                // and came behind this
  };

  [[nodiscard]] std::uint32_t find(const char* call, StreamRef stream) const;
  [[nodiscard]] StreamQueue& queue(std::uint32_t slot) { return link_.control().streams[slot]; }
  [[nodiscard]] Point put(std::uint32_t slot, const Op& op, std::span<const Write> writes);
  void pass_gate(int device);
  [[nodiscard]] bool reached(Point point);
  void wait_for(Point point);
  void wait_signal(std::uint32_t slot, const std::function<bool()>& over);
  Event& expect_event(const char* call, EventHandle event);

  Link& link_;
  std::array<Slot, kMaxStreams> slots_;
  std::array<Gate, kMaxDevices> gates_;
  std::atomic<std::uint64_t> next_id_{1};
  std::mutex streams_mutex_;  // guards the making of streams, and free_slots_
  std::vector<std::uint32_t> free_slots_;
  std::uint32_t used_slots_ = kMaxDevices;
  std::mutex events_mutex_;  // guards events_ and what is in them
  std::unordered_map<EventHandle, std::unique_ptr<Event>> events_;
  Captures captures_;
};

}  // namespace limbo::sim
