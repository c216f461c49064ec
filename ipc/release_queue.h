// Stream-ordered releases: a claim ends when the streams that used its block have passed.
//
// The batch of writes (release.h) goes on the one stream that used the block. Where there were
// several, a lane (stream_room.h) waits for an event on each, and the batch goes there: never on the
// home stream, which such a wait could deadlock against a timeline.
//
// Where a release is, and what it waits for:
//
// | in        | waits for                                              | looked at by   |
// |-----------|--------------------------------------------------------|----------------|
// | landing   | its batch's writes, enqueued                           | releaser       |
// | waiting   | room: too many entries of ours on its streams; then    | releaser       |
// |           | many in one batch, on a lane                           |                |
// | parked    | no stream that used it is captured, nobody begins to   | releaser; the  |
// |           | capture just then, no graph that uses it lives         | graph rings    |
// | idle      | its device is idle: a stream has gone, the driver has  | unmapper       |
// |           | refused a call, or the batch may be part of a graph    |                |
// | failed    | another attempt: no host memory                        | releaser       |
// | (for ever)| the end of this process: a graph uses it, and the      | nobody; one    |
// |           | driver cannot tell of the graph's end; or lost devices | warning        |
//
// A device whose context is lost (Device::is_lost) does nothing any more: no release waits for its
// streams. Where a block was used on no others, it is RELEASED by the host; else the release starts
// again with those that are left. Slots whose batch may still write are never used again.
// One GPU's fault makes the process's others report a loss too, and what runs there may run on. So
// where others are lost as well, and who faulted cannot be told, what a device had used is kept,
// whatever else has used it and goes on.
//
// Captures: nothing of ours may become part of a graph, which would give back, at every launch, what
// its slot holds by then. The questions and the enqueueing are one StreamQuestion, so that a capture
// that is announced begins before or behind them. For those that are not, a stream is asked after
// the call too. A late release goes by an event and a lane: recorded into a capture, an event is not
// waited for, and leaves nothing in the graph. A release in the program's own thread is one write;
// where somebody begins to capture that very stream meanwhile, the write may be in the graph, and
// the release is kept until the graph is over and the device idle.
//
// No device call is made under a lock.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "allocator/capture_gate.h"
#include "allocator/device/device.h"
#include "ipc/release_job.h"
#include "ipc/service_thread.h"
#include "ipc/stream_room.h"

namespace limbo {

class ReleaseQueue {
 public:
  using Clock = ServiceThread::Clock;

  // `releaser` calls run(), `unmapper` calls run_when_idle(): waiting for a device is allowed there.
  ReleaseQueue(Device& device, ServiceThread& releaser, ServiceThread& unmapper);
  ~ReleaseQueue();

  // `one`: a list of one. Never waits, but for what a launch on its stream would wait for.
  void release(ReleaseJobs one) noexcept;

  // The end of the graph that `stream` is being captured into; null when it is not. Throws
  // kDeviceError.
  [[nodiscard]] std::shared_ptr<const GraphEnd> end_of_graph(StreamRef stream);

  // Strikes off what has landed: its slot waits for the producer, its mapping loses its hold.
  void poll() noexcept;

  // The releaser's periodic.
  [[nodiscard]] std::optional<Clock::time_point> run(Clock::time_point now);
  // The unmapper's: true when some release still waits for its device.
  bool run_when_idle() noexcept;

  // Whether the context on `device` is lost, as far as was noticed: costs a load. With `look`, the
  // device is asked, until the queue is stopped.
  [[nodiscard]] bool is_lost(int device, bool look = false) noexcept;
  // Of a device that is_lost has told to be lost: whether others were lost by then, so that what this
  // one had to do may not be over.
  [[nodiscard]] bool may_run_on(int device) const noexcept;

  // Releases that are not over (of one producer's blocks: ProducerLink::releases_pending). One is over
  // when its slot can be used again, or is known never to be.
  [[nodiscard]] std::uint64_t pending() const noexcept { return pending_.load(); }

  // From now on no release touches the device: the process is ending.
  void stop() noexcept { stopped_.store(true); }

 private:
  using StreamKey = StreamRoom::StreamKey;
  // What went to a device together: jobs of one link, on the same streams.
  struct Batch {
    ReleaseJobs jobs;
    StreamRoom::Taken room;
    std::vector<StreamRoom::Event> events;
  };
  // Batches of one target stream, in the order of their writes.
  struct Landing {
    std::list<Batch> batches;
    std::uint32_t coming = 0;  // being enqueued: the entry stays
  };
  // Jobs that can go into one batch.
  struct Alike {
    const ProducerLink* link;
    std::vector<StreamUse> streams;
    [[nodiscard]] bool operator<(const Alike& other) const noexcept;
  };
  // Rings the releaser when a graph is over, as long as there is one.
  struct Bell {
    std::mutex mutex;  // guards thread
    ServiceThread* thread = nullptr;
  };

  void begun(const ReleaseJob& job) noexcept;
  void over(const ReleaseJob& job) noexcept;

  // ---- the way of a release (release_queue.cpp)
  enum class Way { kEnqueue, kPark, kWhenIdle, kLost, kKeep };
  void start(ReleaseJobs& one, bool fresh) noexcept;
  [[nodiscard]] Way way_of(ReleaseJob& job, bool fresh, const StreamQuestion& question);
  void enqueue_or_wait(ReleaseJobs& one);
  void put(ReleaseJobs& where, ReleaseJobs& jobs) noexcept;

  // ---- batches (release_batch.cpp)
  void enqueue(std::list<Batch>& one) noexcept;
  [[nodiscard]] bool join(Batch& batch);
  void write(Batch& batch, StreamRef target);
  void may_be_in_graph(Batch& batch, StreamRef target) noexcept;
  void not_enqueued(Batch& batch, bool device_refused) noexcept;
  void finish(ReleaseJobs& jobs) noexcept;

  // ---- what takes its time (release_later.cpp)
  void enqueue_waiting();
  [[nodiscard]] bool enqueue_late(std::list<Batch>& one, StreamRoom::Taken& room) noexcept;
  void take_alike(const Alike& key, ReleaseJobs& jobs);
  void end_by_host(ReleaseJob& job, bool may_still_write) noexcept;
  void keep(ReleaseJobs& jobs, const char* why) noexcept;

  // ---- a lost context (release_lost.cpp)
  // Whether one is of a device whose context is lost; with `look`, as is_lost.
  [[nodiscard]] bool names_lost(const std::vector<StreamUse>& streams, bool look = false) noexcept;
  void leave_lost_streams(ReleaseJob& job) noexcept;
  void end_lost(ReleaseJobs& jobs) noexcept;
  bool notice_loss(int device) noexcept;  // false once the queue is stopped
  [[nodiscard]] bool another_is_lost(int device) noexcept;
  void take_batches_behind_lost(std::list<Batch>& taken) noexcept;
  void look_for_losses(Clock::time_point now);
  void ask_globally(int device);

  Device& device_;
  ServiceThread& releaser_;
  ServiceThread& unmapper_;
  StreamRoom room_;
  const std::shared_ptr<Bell> bell_;
  std::atomic<bool> stopped_{false};
  std::atomic<bool> warned_{false};
  std::atomic<std::uint64_t> lost_devices_{0};  // a bit each
  std::atomic<std::uint64_t> may_run_on_{0};    // of those: what they had to do may not be over
  std::atomic<std::uint64_t> pending_{0};

  Clock::time_point next_look_for_losses_{};  // of the releaser alone

  std::mutex mutex_;  // guards what follows; nothing is called under it
  std::map<StreamKey, Landing> landing_;
  std::map<Alike, ReleaseJobs> waiting_;
  ReleaseJobs parked_;
  ReleaseJobs idle_;
  ReleaseJobs failed_;
  ReleaseJobs kept_;
};

}  // namespace limbo
