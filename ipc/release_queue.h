// Stream-ordered releases: a claim ends when the streams that used its block have passed.
//
// The batch of writes (release.h) goes on the one stream that used the block. Where there were
// several, an internal stream waits for an event on each, and the batch goes there: never on the
// home stream, which such a wait could deadlock against a timeline.
//
// A stream takes 1,021 entries behind a long kernel, then the next call blocks the host. So at most
// kMaxUnlanded entries of a stream are Limbo's own and unlanded; further releases wait here, and the
// worker enqueues them, many in one batch, when earlier ones have landed.
//
// What cannot be enqueued (the device refuses, or a stream is being captured) stays held until this
// process is quiet: nothing is reused too early, and one warning says so. No device call is made
// under a lock.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "allocator/device/device.h"
#include "ipc/producer_link.h"
#include "ipc/protocol/release.h"
#include "ipc/service_thread.h"

namespace limbo {

// A stream, and the driver's own name for it: handles are reused, ids are not.
struct StreamUse {
  StreamRef stream;
  std::uint64_t id = 0;

  friend bool operator==(const StreamUse&, const StreamUse&) = default;
};

struct ReleaseJob {
  std::shared_ptr<ProducerLink> link;
  protocol::Release release;
  Mapping* mapping = nullptr;
  std::vector<StreamUse> streams;  // at least one, each once
};

class ReleaseQueue {
 public:
  using Clock = ServiceThread::Clock;

  static constexpr std::uint32_t kMaxUnlanded = 256;

  // `worker` calls run(); `unmapper` is where waiting for a whole device is allowed.
  ReleaseQueue(Device& device, ServiceThread& worker, ServiceThread& unmapper);

  void release(ReleaseJob job) noexcept;

  // Strikes off what has landed: its slot waits for the producer, its mapping loses its hold.
  void poll() noexcept;

  // The worker's periodic: enqueues what waits, polls.
  [[nodiscard]] std::optional<Clock::time_point> run(Clock::time_point now);

  // Releases enqueued or waiting; of one producer's blocks, where it is named.
  [[nodiscard]] std::uint64_t pending(const ProducerLink* link = nullptr);

  // From now on no release touches the device: the process is ending.
  void stop() noexcept { stopped_.store(true); }

 private:
  using StreamKey = std::pair<int, std::uint64_t>;
  struct Event {
    int device = 0;
    EventHandle handle = nullptr;
  };
  // What went to a device together.
  struct Batch {
    std::vector<ReleaseJob> jobs;  // all of one link
    std::vector<std::pair<StreamKey, std::uint32_t>> load;
    std::vector<Event> events;
  };

  void start_or_queue(ReleaseJob&& job);
  enum class Way { kEnqueue, kWhenIdle, kKeep };
  [[nodiscard]] Way way_of(const ReleaseJob& job) noexcept;
  void when_device_is_idle(ReleaseJob&& job);
  void keep(const std::string& why) noexcept;

  // Under mutex_:
  [[nodiscard]] bool reserve(const ReleaseJob& job, Batch& batch);
  void take_waiting(std::list<Batch>& batches);

  void enqueue(std::list<Batch>&& one) noexcept;
  void enqueue_writes(Batch& batch, StreamRef target);
  [[nodiscard]] StreamUse join_streams(Batch& batch);
  [[nodiscard]] StreamUse internal_stream(int device);
  [[nodiscard]] Event take_event(int device);
  void finish(Batch& batch) noexcept;

  Device& device_;
  ServiceThread& worker_;
  ServiceThread& unmapper_;
  std::atomic<bool> stopped_{false};
  std::atomic<bool> warned_{false};

  std::mutex mutex_;                         // guards what follows; nothing is called under it
  std::map<StreamKey, std::uint32_t> load_;  // entries of ours that have not landed
  std::deque<ReleaseJob> waiting_;
  std::list<Batch> enqueued_;
  std::uint64_t being_enqueued_ = 0;
  std::map<int, StreamUse> internal_;
  std::vector<Event> spare_events_;
};

}  // namespace limbo
