// Batches: enqueued, landed, and what becomes of one that the device refuses.
#include <algorithm>
#include <utility>

#include "allocator/error.h"
#include "ipc/fail_points.h"
#include "ipc/protocol/mistakes.h"
#include "ipc/release_queue.h"

namespace limbo {

using protocol::makes;
using protocol::Mistake;

// Enqueues the batch, which is the only one of `one`.
void ReleaseQueue::enqueue(std::list<Batch>& one) noexcept {
  Batch& batch = one.front();
  const StreamUse target = batch.room.lane ? *batch.room.lane : batch.jobs.front().streams.front();
  const StreamKey key = StreamRoom::key_of(target);
  bool coming = false;
  bool captured = false;
  try {
    {
      const std::lock_guard lock(mutex_);
      ++landing_[key].coming;
      coming = true;
    }
    LIMBO_FAIL_POINT("release.before_enqueue");
    captured = batch.room.lane && !join(batch);
    if (!captured) {
      write(batch, target.stream);
      LIMBO_FAIL_POINT("release.after_enqueue");
    }
  } catch (const std::exception& failure) {
    const auto* error = dynamic_cast<const Error*>(&failure);
    not_enqueued(batch, error != nullptr && error->code() == ErrorCode::kDeviceError);
  }
  if (captured) not_enqueued(batch, false);
  if (!batch.room.lane && !batch.jobs.empty()) may_be_in_graph(batch, target.stream);
  if (makes(Mistake::kCloseWhileLanding) && !batch.jobs.empty()) {
    for (const ReleaseJob& job : batch.jobs) {
      if (job.link->imports().let_go(job.mapping)) unmapper_.nudge();
    }
  }
  const std::lock_guard lock(mutex_);
  const auto landing = landing_.find(key);
  if (!coming) return;
  --landing->second.coming;
  if (!batch.jobs.empty()) {
    landing->second.batches.splice(landing->second.batches.end(), one);
  } else if (landing->second.batches.empty() && landing->second.coming == 0) {
    landing_.erase(landing);
  }
}

// False: one of the streams is being captured. An event that was recorded into the capture leaves
// nothing in the graph as long as nobody waits for it.
bool ReleaseQueue::join(Batch& batch) {
  const std::vector<StreamUse>& streams = batch.jobs.front().streams;
  batch.events.reserve(streams.size());
  for (const StreamUse& use : streams) {
    batch.events.push_back(room_.take_event(use.stream.device));
    const EventHandle event = batch.events.back().handle;
    device_.record_event(use.stream, event);
    if (device_.is_capturing(use.stream)) return false;
    device_.wait_event(batch.room.lane->stream, event);
  }
  return true;
}

void ReleaseQueue::write(Batch& batch, StreamRef target) {
  std::vector<protocol::Release> releases;
  releases.reserve(batch.jobs.size());
  for (const ReleaseJob& job : batch.jobs) releases.push_back(job.release);
  ConsumerRow& row = batch.jobs.front().link->row();
  std::vector<WordWrite> writes;
  writes.reserve(std::min(Device::kMaxBatchOperations, 2 * releases.size() + 1));
  const std::size_t written = protocol::write_release_batch(
      row.view(), releases, Device::kMaxBatchOperations, [&] { return row.next_number(); },
      [&](SharedWord* word, std::uint64_t value) {
        writes.push_back({reinterpret_cast<std::uint64_t*>(word), value});
      });
  if (written != releases.size()) {
    throw Error(ErrorCode::kInternal, "A batch of releases has more operations than fit into one.");
  }
  for (ReleaseJob& job : batch.jobs) {
    job.left_behind |= job.enqueued;
    job.enqueued = true;
  }
  device_.write_words(target, writes);
}

// Somebody captures the stream that the batch was written to: was it before or after?
void ReleaseQueue::may_be_in_graph(Batch& batch, StreamRef target) noexcept {
  ReleaseJob& job = batch.jobs.front();  // one alone goes straight to its stream
  try {
    if (!device_.is_capturing(target)) return;
    job.unknown_graph = true;
    if (auto end = end_of_graph(target)) {
      job.graphs.push_back(std::move(end));
      job.in_graph = true;
      job.unknown_graph = false;
    }
  } catch (const std::exception&) {
    job.unknown_graph = true;
  }
  room_.give_back(batch.room);
  put(job.in_graph ? parked_ : idle_, batch.jobs);
  unmapper_.nudge();
}

// Sends the jobs on, and leaves the batch empty. When its device is idle, everything that was
// enqueued there has landed, so it need not be known how much the device has taken.
void ReleaseQueue::not_enqueued(Batch& batch, bool device_refused) noexcept {
  room_.give_back(batch.room);
  batch.room.entries.clear();
  for (const StreamRoom::Event& event : batch.events) room_.give_back(event);
  batch.events.clear();
  if (!device_refused || names_lost(batch.jobs.front().streams, true)) {
    put(failed_, batch.jobs);
    releaser_.nudge();
  } else {
    put(idle_, batch.jobs);
    unmapper_.nudge();
  }
}

void ReleaseQueue::poll() noexcept {
  std::list<Batch> landed;
  {
    const std::lock_guard lock(mutex_);
    for (auto entry = landing_.begin(); entry != landing_.end();) {
      std::list<Batch>& batches = entry->second.batches;
      // The batches of a stream, and the writes of a batch, land in order: the last claim's tells
      // of the others.
      while (!batches.empty()) {
        const ReleaseJob& last = batches.front().jobs.back();
        if (!last.link->row().landed(last.release.slot)) break;
        landed.splice(landed.end(), batches, batches.begin());
      }
      const bool done = batches.empty() && entry->second.coming == 0;
      entry = done ? landing_.erase(entry) : std::next(entry);
    }
  }
  for (Batch& batch : landed) {
    room_.give_back(batch.room);
    for (const StreamRoom::Event& event : batch.events) room_.give_back(event);
    finish(batch.jobs);
  }
}

void ReleaseQueue::finish(ReleaseJobs& jobs) noexcept {
  for (const ReleaseJob& job : jobs) {
    if (job.left_behind) {
      job.link->row().retire(job.release.slot);
    } else {
      job.link->row().released(job.release.slot);
    }
    if (!makes(Mistake::kCloseWhileLanding) && job.link->imports().let_go(job.mapping)) {
      unmapper_.nudge();
    }
    over(job);
  }
  jobs.clear();
}

}  // namespace limbo
