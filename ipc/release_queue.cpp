#include "ipc/release_queue.h"

#include <algorithm>
#include <cstdio>

#include "allocator/error.h"
#include "ipc/fail_points.h"

namespace limbo {
namespace {

constexpr std::chrono::milliseconds kLookAgainWaiting{2};
constexpr std::chrono::milliseconds kLookAgainLanding{50};

constexpr const char* kCaptured = "a stream that used it is being captured";

}  // namespace

ReleaseQueue::ReleaseQueue(Device& device, ServiceThread& worker, ServiceThread& unmapper)
    : device_(device), worker_(worker), unmapper_(unmapper) {}

void ReleaseQueue::release(ReleaseJob job) noexcept {
  if (stopped_.load()) return;
  try {
    switch (way_of(job)) {
      case Way::kEnqueue:
        start_or_queue(std::move(job));
        return;
      case Way::kWhenIdle:
        when_device_is_idle(std::move(job));
        return;
      case Way::kKeep:
        keep(kCaptured);
        return;
    }
  } catch (const std::exception& failure) {
    keep(failure.what());
  }
}

// Asked right before enqueueing, however late that is. A handle that means another stream by now, or
// none, tells nothing about the work that used the block; and a release that became part of a graph
// would give back, at every launch, whatever its slot holds by then.
ReleaseQueue::Way ReleaseQueue::way_of(const ReleaseJob& job) noexcept {
  try {
    for (const StreamUse& use : job.streams) {
      if (device_.stream_id(use.stream) != use.id) return Way::kWhenIdle;
    }
    for (const StreamUse& use : job.streams) {
      if (device_.is_capturing(use.stream)) return Way::kKeep;
    }
  } catch (const std::exception&) {
    return Way::kWhenIdle;  // where the device itself is broken, waiting for it fails
  }
  return Way::kEnqueue;
}

void ReleaseQueue::when_device_is_idle(ReleaseJob&& job) {
  auto kept = std::make_shared<ReleaseJob>(std::move(job));
  {
    const std::lock_guard lock(mutex_);
    ++being_enqueued_;
  }
  unmapper_.post([this, kept] {
    try {
      for (const StreamUse& use : kept->streams) device_.synchronize_device(use.stream.device);
      protocol::StdMemory memory;
      protocol::release_by_host(memory, kept->link->row().view(), kept->release.slot,
                                kept->release.target);
      Batch batch;
      batch.jobs.push_back(std::move(*kept));
      finish(batch);
    } catch (const std::exception& failure) {
      keep(failure.what());
    }
    const std::lock_guard lock(mutex_);
    --being_enqueued_;
  });
}

void ReleaseQueue::start_or_queue(ReleaseJob&& job) {
  std::list<Batch> one(1);
  for (int attempt = 0; attempt < 2; ++attempt) {
    if (attempt == 1) poll();
    const std::lock_guard lock(mutex_);
    if (reserve(job, one.front())) {
      one.front().jobs.push_back(std::move(job));
      ++being_enqueued_;
      break;
    }
    if (attempt == 1) waiting_.push_back(std::move(job));
  }
  if (!one.front().jobs.empty()) enqueue(std::move(one));
  worker_.nudge();
}

// One entry on the stream; for several an event on each, and on the internal stream a wait for
// each and the batch.
bool ReleaseQueue::reserve(const ReleaseJob& job, Batch& batch) {
  const auto full = [&](const StreamKey& key) {
    const auto found = load_.find(key);
    return found != load_.end() && found->second >= kMaxUnlanded;
  };
  std::vector<std::pair<StreamKey, std::uint32_t>> load;
  for (const StreamUse& use : job.streams) load.push_back({{use.stream.device, use.id}, 1});
  if (job.streams.size() > 1) {
    const int device = job.mapping->device();
    if (const auto internal = internal_.find(device); internal != internal_.end()) {
      load.push_back(
          {{device, internal->second.id}, static_cast<std::uint32_t>(job.streams.size() + 1)});
    }
  }
  for (const auto& [key, count] : load) {
    if (full(key)) return false;
  }
  for (const auto& [key, count] : load) load_[key] += count;
  batch.load = std::move(load);
  return true;
}

// Enqueues the batch, which is the only one of `one`.
void ReleaseQueue::enqueue(std::list<Batch>&& one) noexcept {
  Batch& batch = one.front();
  const std::uint64_t count = batch.jobs.size();
  bool enqueued = false;
  try {
    LIMBO_FAIL_POINT("release.before_enqueue");
    const bool several = batch.jobs.front().streams.size() > 1;
    const StreamUse target = several ? join_streams(batch) : batch.jobs.front().streams.front();
    enqueue_writes(batch, target.stream);
    enqueued = true;
    LIMBO_FAIL_POINT("release.after_enqueue");
  } catch (const std::exception& failure) {
    // Whether some of it will be written is not known, so the slots are not used again.
    if (!enqueued) keep(failure.what());
  }
  const std::lock_guard lock(mutex_);
  being_enqueued_ -= count;
  if (enqueued) {
    enqueued_.splice(enqueued_.end(), one);
  } else {
    for (const auto& [key, entries] : batch.load) load_[key] -= entries;
  }
}

void ReleaseQueue::enqueue_writes(Batch& batch, StreamRef target) {
  std::vector<protocol::Release> releases;
  for (const ReleaseJob& job : batch.jobs) releases.push_back(job.release);
  ConsumerRow& row = batch.jobs.front().link->row();
  std::vector<WordWrite> writes;
  writes.reserve(Device::kMaxBatchOperations);
  const std::size_t written = protocol::write_release_batch(
      row.view(), releases, Device::kMaxBatchOperations, [&] { return row.next_number(); },
      [&](SharedWord* word, std::uint64_t value) {
        writes.push_back({reinterpret_cast<std::uint64_t*>(word), value});
      });
  if (written != releases.size()) {
    throw Error(ErrorCode::kInternal, "A batch of releases has more operations than fit into one.");
  }
  device_.write_words(target, writes);
}

StreamUse ReleaseQueue::join_streams(Batch& batch) {
  const ReleaseJob& job = batch.jobs.front();
  const StreamUse internal = internal_stream(job.mapping->device());
  for (const StreamUse& use : job.streams) {
    batch.events.push_back(take_event(use.stream.device));
    device_.record_event(use.stream, batch.events.back().handle);
    device_.wait_event(internal.stream, batch.events.back().handle);
  }
  return internal;
}

StreamUse ReleaseQueue::internal_stream(int device) {
  {
    const std::lock_guard lock(mutex_);
    if (const auto found = internal_.find(device); found != internal_.end()) return found->second;
  }
  const StreamRef made{device, device_.create_stream(device)};
  const StreamUse use{made, device_.stream_id(made)};
  StreamUse kept;
  {
    const std::lock_guard lock(mutex_);
    kept = internal_.emplace(device, use).first->second;
  }
  if (kept.id != use.id) device_.destroy_stream(made);  // another thread was first
  return kept;
}

ReleaseQueue::Event ReleaseQueue::take_event(int device) {
  {
    const std::lock_guard lock(mutex_);
    const auto found = std::find_if(spare_events_.begin(), spare_events_.end(),
                                    [&](const Event& event) { return event.device == device; });
    if (found != spare_events_.end()) {
      const Event event = *found;
      spare_events_.erase(found);
      return event;
    }
  }
  return {device, device_.create_event(device)};
}

void ReleaseQueue::poll() noexcept {
  std::list<Batch> landed;
  {
    const std::lock_guard lock(mutex_);
    for (auto batch = enqueued_.begin(); batch != enqueued_.end();) {
      const auto current = batch++;
      // Writes of a batch land in order: the last claim's tells of the others.
      ReleaseJob& last = current->jobs.back();
      if (!last.link->row().landed(last.release.slot)) continue;
      for (const auto& [key, entries] : current->load) {
        if ((load_[key] -= entries) == 0) load_.erase(key);
      }
      spare_events_.insert(spare_events_.end(), current->events.begin(), current->events.end());
      landed.splice(landed.end(), enqueued_, current);
    }
  }
  for (Batch& batch : landed) finish(batch);
}

void ReleaseQueue::finish(Batch& batch) noexcept {
  for (const ReleaseJob& job : batch.jobs) {
    job.link->row().released(job.release.slot);
    if (job.link->imports().let_go(job.mapping)) unmapper_.nudge();
  }
}

// Takes everything out of waiting_ that may start now: releases of one link and one stream together.
void ReleaseQueue::take_waiting(std::list<Batch>& batches) {
  // A claim, its group's dirty word, and the row's for all: always at least this many fit.
  constexpr std::size_t kJobsPerBatch = (Device::kMaxBatchOperations - 1) / 2;
  std::deque<ReleaseJob> later;
  for (ReleaseJob& job : waiting_) {
    const auto same = std::find_if(batches.begin(), batches.end(), [&](const Batch& batch) {
      const ReleaseJob& first = batch.jobs.front();
      return first.link == job.link && job.streams.size() == 1 && first.streams == job.streams &&
             batch.jobs.size() < kJobsPerBatch;
    });
    if (same != batches.end()) {
      same->jobs.push_back(std::move(job));
      continue;
    }
    Batch batch;
    if (reserve(job, batch)) {
      batch.jobs.push_back(std::move(job));
      batches.push_back(std::move(batch));
    } else {
      later.push_back(std::move(job));
    }
  }
  waiting_ = std::move(later);
  for (const Batch& batch : batches) being_enqueued_ += batch.jobs.size();
}

std::optional<ReleaseQueue::Clock::time_point> ReleaseQueue::run(Clock::time_point now) {
  poll();
  std::list<Batch> batches;
  {
    const std::lock_guard lock(mutex_);
    if (!stopped_.load()) take_waiting(batches);
  }
  while (!batches.empty()) {
    std::list<Batch> one;
    one.splice(one.begin(), batches, batches.begin());
    // All jobs of a batch have the same streams.
    const Way way = way_of(one.front().jobs.front());
    if (way == Way::kEnqueue) {
      enqueue(std::move(one));
      continue;
    }
    std::vector<ReleaseJob> jobs = std::move(one.front().jobs);
    {
      const std::lock_guard lock(mutex_);
      being_enqueued_ -= jobs.size();
      for (const auto& [key, entries] : one.front().load) load_[key] -= entries;
    }
    if (way == Way::kKeep) {
      keep(kCaptured);
      continue;
    }
    for (ReleaseJob& job : jobs) when_device_is_idle(std::move(job));
  }
  const std::lock_guard lock(mutex_);
  if (!waiting_.empty()) return now + kLookAgainWaiting;
  if (!enqueued_.empty()) return now + kLookAgainLanding;
  return std::nullopt;
}

std::uint64_t ReleaseQueue::pending(const ProducerLink* link) {
  const auto counts = [&](const ReleaseJob& job) { return !link || job.link.get() == link; };
  const std::lock_guard lock(mutex_);
  std::uint64_t count = being_enqueued_;
  count += static_cast<std::uint64_t>(std::count_if(waiting_.begin(), waiting_.end(), counts));
  for (const Batch& batch : enqueued_) {
    if (counts(batch.jobs.front())) count += batch.jobs.size();
  }
  return count;
}

void ReleaseQueue::keep(const std::string& why) noexcept {
  if (stopped_.load() || warned_.exchange(true)) return;
  std::fprintf(stderr,
               "limbo: a received block could not be given back (%s); its sender gets it back when "
               "this process ends. Further ones are not reported.\n",
               why.c_str());
}

}  // namespace limbo
