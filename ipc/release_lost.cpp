// Releases of a process that has lost a GPU context.
//
// The streams of that device do nothing any more, so no release waits for them. Those of other
// devices go on, whichever device the mapping is for: a release still waits for them, by a batch of
// its own where the one that it had was behind a lost stream too. Where they are reported lost with
// it (as on hardware), nothing tells when they end: then the end of the process gives back, whatever
// else has used the block and goes on.
#include <utility>

#include "allocator/device/sim_device.h"
#include "ipc/fail_points.h"
#include "ipc/protocol/mistakes.h"
#include "ipc/release_queue.h"

namespace limbo {
namespace {

constexpr std::chrono::milliseconds kLookForLosses{50};

std::uint64_t bit_of(int device) noexcept {
  return std::uint64_t{1} << (device & 63);
}

}  // namespace

bool ReleaseQueue::is_lost(int device, bool look) noexcept {
  if ((lost_devices_.load(std::memory_order_acquire) & bit_of(device)) != 0) return true;
  if (!look || stopped_.load() || !device_.is_lost(device)) return false;
  return notice_loss(device);
}

bool ReleaseQueue::may_run_on(int device) const noexcept {
  return (may_run_on_.load(std::memory_order_relaxed) & bit_of(device)) != 0;
}

bool ReleaseQueue::names_lost(const std::vector<StreamUse>& streams, bool look) noexcept {
  bool any = false;
  for (const StreamUse& use : streams) any |= is_lost(use.stream.device, look);
  return any;
}

void ReleaseQueue::leave_lost_streams(ReleaseJob& job) noexcept {
  if (lost_devices_.load(std::memory_order_acquire) == 0) return;
  std::erase_if(job.streams, [&](const StreamUse& use) {
    const int device = use.stream.device;
    if (!is_lost(device)) return false;
    job.may_run_on |= may_run_on(device);
    return true;
  });
}

// A device that is lost alone has faulted itself, and the work of a device that faulted has ended.
bool ReleaseQueue::another_is_lost(int device) noexcept {
  try {
    const int count = device_.device_count();
    for (int other = 0; other < count; ++other) {
      if (other != device && device_.is_lost(other)) return true;
    }
    return false;
  } catch (const std::exception&) {
    return true;  // nothing is known
  }
}

void ReleaseQueue::end_lost(ReleaseJobs& jobs) noexcept {
  while (!jobs.empty()) {
    ReleaseJobs one;
    one.splice(one.begin(), jobs, jobs.begin());
    const std::shared_ptr<ProducerLink> link = one.front().link;
    if (one.front().may_run_on) {
      keep(one, "several of its GPUs report a lost context, and what one of them runs may run on");
      link->tell_context_lost();
      continue;
    }
    LIMBO_FAIL_POINT("release.before_lost");
    end_by_host(one.front(), one.front().enqueued);
    link->tell_context_lost();
    LIMBO_FAIL_POINT("release.after_lost");
  }
}

// What goes on without the lost device's streams is started again by the releaser. Behind the answer
// that a device is lost: a driver that has ended with its process says the same, and what it has been
// given may run on. It ends after this queue was stopped.
bool ReleaseQueue::notice_loss(int device) noexcept {
  if (stopped_.load()) return false;
  if ((lost_devices_.load(std::memory_order_acquire) & bit_of(device)) == 0 &&
      another_is_lost(device)) {
    may_run_on_.fetch_or(bit_of(device), std::memory_order_relaxed);
  }
  lost_devices_.fetch_or(bit_of(device), std::memory_order_acq_rel);
  ReleaseJobs lost;
  std::list<Batch> batches;
  {
    const std::lock_guard lock(mutex_);
    ReleaseJobs again;
    take_batches_behind_lost(batches);
    for (Batch& batch : batches) again.splice(again.end(), batch.jobs);
    for (auto group = waiting_.begin(); group != waiting_.end();) {
      const auto current = group++;
      if (!names_lost(current->first.streams)) continue;
      again.splice(again.end(), current->second);
      waiting_.erase(current);
    }
    for (ReleaseJobs* list : {&again, &parked_, &idle_, &failed_, &kept_}) {
      for (auto job = list->begin(); job != list->end();) {
        const auto current = job++;
        leave_lost_streams(*current);
        if (list == &kept_ ? !current->streams.empty() : !ends_as_lost(*current)) continue;
        if (list == &kept_) begun(*current);  // anew
        lost.splice(lost.end(), *list, current);
      }
    }
    failed_.splice(failed_.end(), again);
  }
  for (const Batch& batch : batches) {
    room_.abandon(batch.room);
    for (const StreamRoom::Event& event : batch.events) room_.give_back(event);
  }
  end_lost(lost);
  releaser_.nudge();
  return true;
}

// Under the lock. A lane that waits for a lost stream may stand still for ever, and with it all that
// has been enqueued there since.
void ReleaseQueue::take_batches_behind_lost(std::list<Batch>& taken) noexcept {
  for (auto& [key, landing] : landing_) {
    std::list<Batch>& batches = landing.batches;
    auto first = batches.begin();
    while (first != batches.end() && !names_lost(first->jobs.front().streams)) ++first;
    taken.splice(taken.end(), batches, first, batches.end());
  }
}

// As a program asks that has not been told of captures: the one that is under way is lost.
void ReleaseQueue::ask_globally(int device) {
  const StreamRoom::Event event = room_.take_event(device);
  (void)as_sim(device_).query_event_globally(device, event.handle);
}

// A batch on a lost device never lands.
void ReleaseQueue::look_for_losses(Clock::time_point now) {
  if (now < next_look_for_losses_) return;
  next_look_for_losses_ = now + kLookForLosses;
  std::uint64_t devices = 0;
  const auto note = [&](const std::vector<StreamUse>& streams) {
    for (const StreamUse& use : streams) devices |= bit_of(use.stream.device);
  };
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [key, landing] : landing_) {
      for (const Batch& batch : landing.batches) note(batch.jobs.front().streams);
    }
    for (const auto& [key, jobs] : waiting_) note(key.streams);
    for (const ReleaseJob& job : parked_) note(job.streams);
  }
  for (int device = 0; device < 64; ++device) {
    if ((devices >> device & 1) == 0) continue;
    if (protocol::makes(protocol::Mistake::kGlobalCaptureMode)) ask_globally(device);
    // One that came while the loss was being noticed is taken now.
    if (device_.is_lost(device)) (void)notice_loss(device);
  }
}

}  // namespace limbo
