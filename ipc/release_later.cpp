// Releases that take their time: many in one batch, an idle device, a lost context, for ever.
#include <algorithm>
#include <cstdio>
#include <set>
#include <utility>

#include "allocator/device/sim_device.h"
#include "allocator/error.h"
#include "ipc/fail_points.h"
#include "ipc/protocol/mistakes.h"
#include "ipc/release_queue_parts.h"

namespace limbo {
namespace {

constexpr std::chrono::milliseconds kLookForLosses{50};

}  // namespace

// ---- many in one batch ------------------------------------------------------------------------

// As many as fit: an operation for each claim and each group that they are in, one for the row.
void ReleaseQueue::take_alike(const Alike& key, ReleaseJobs& jobs) {
  std::set<std::uint32_t> groups;
  const std::lock_guard lock(mutex_);
  const auto found = waiting_.find(key);
  if (found == waiting_.end()) return;
  ReleaseJobs& group = found->second;
  while (!group.empty()) {
    groups.insert(group.front().release.slot / protocol::kGroupClaims);
    if (1 + groups.size() + jobs.size() + 1 > Device::kMaxBatchOperations) break;
    jobs.splice(jobs.end(), group, group.begin());
  }
  if (group.empty()) waiting_.erase(found);
  in_hands_.fetch_add(jobs.size());
}

void ReleaseQueue::enqueue_waiting() {
  std::vector<Alike> keys;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [key, jobs] : waiting_) keys.push_back(key);
  }
  for (const Alike& key : keys) {
    while (true) {
      const int device = key.streams.front().stream.device;
      std::optional<StreamRoom::Taken> room;
      try {
        room = room_.take(key.streams, true, device);
        if (!room) break;
      } catch (const Error&) {
        // No lane can be made: each goes its own way, which meets the device too.
      }
      std::list<Batch> batch(1);
      ReleaseJobs& jobs = batch.front().jobs;
      take_alike(key, jobs);
      const std::uint64_t count = jobs.size();
      if (count > 0 && room && way_of(jobs.front(), false) == Way::kEnqueue) {
        LIMBO_FAIL_POINT("release.before_late");
        batch.front().room = std::move(*room);
        enqueue(batch);
      } else {
        if (room) room_.give_back(*room);
        if (!room && count > 0 && !is_lost(device, true)) put(idle_, jobs);
        while (!jobs.empty()) {
          ReleaseJobs one;
          one.splice(one.begin(), jobs, jobs.begin());
          start(one, false);
        }
        unmapper_.nudge();
      }
      in_hands_.fetch_sub(count);
      if (count == 0) break;
    }
  }
}

// ---- by the host ------------------------------------------------------------------------------

// No stream uses the block any more. Where the stream's write has landed, its dirty words may not
// have. A slot whose batch may still write is never used again: the write would end a later claim.
void ReleaseQueue::end_by_host(ReleaseJob& job, bool may_still_write) noexcept {
  protocol::StdMemory memory;
  ConsumerRow& row = job.link->row();
  const bool landed = row.landed(job.release.slot);
  if (landed) {
    protocol::mark_dirty(memory, row.view(), job.release.slot, std::memory_order_release);
  } else {
    protocol::release_by_host(memory, row.view(), job.release.slot, job.release.target);
  }
  if (may_still_write && !landed && !protocol::makes(protocol::Mistake::kLostSlotReused)) {
    LIMBO_FAIL_POINT("release.before_retire");
    row.retire(job.release.slot);
  } else {
    row.released(job.release.slot);
  }
  if (job.link->imports().let_go(job.mapping)) unmapper_.nudge();
}

bool ReleaseQueue::run_when_idle() noexcept {
  if (stopped_.load()) return false;
  ReleaseJobs jobs;
  {
    const std::lock_guard lock(mutex_);
    jobs.splice(jobs.end(), idle_);
    in_hands_.fetch_add(jobs.size());
  }
  const std::uint64_t count = jobs.size();
  std::uint64_t idle_devices = 0;  // a bit each
  const auto wait_for = [&](int device) {
    const std::uint64_t bit = std::uint64_t{1} << device;
    if ((idle_devices & bit) != 0) return;
    device_.synchronize_device(device);
    idle_devices |= bit;
  };
  while (!jobs.empty()) {
    ReleaseJobs one;
    one.splice(one.begin(), jobs, jobs.begin());
    ReleaseJob& job = one.front();
    const int device = job.mapping->device();
    try {
      if (is_lost(device)) {
        end_lost(one);
        continue;
      }
      wait_for(device);
      for (const StreamUse& use : job.streams) wait_for(use.stream.device);
      LIMBO_FAIL_POINT("release.when_idle");
      end_by_host(job, job.unknown_graph);
    } catch (const std::exception&) {
      if (is_lost(device, true)) {
        end_lost(one);
      } else {
        put(idle_, one);
      }
    }
  }
  in_hands_.fetch_sub(count);
  const std::lock_guard lock(mutex_);
  return !idle_.empty();
}

// ---- a lost context ---------------------------------------------------------------------------

bool ReleaseQueue::is_lost(int device, bool look) noexcept {
  const std::uint64_t bit = std::uint64_t{1} << (device & 63);
  if ((lost_devices_.load(std::memory_order_acquire) & bit) != 0) return true;
  if (!look || !device_.is_lost(device)) return false;
  notice_loss(device);
  return true;
}

void ReleaseQueue::end_lost(ReleaseJobs& jobs) noexcept {
  for (ReleaseJob& job : jobs) {
    LIMBO_FAIL_POINT("release.before_lost");
    end_by_host(job, job.enqueued);
    job.link->tell_context_lost();
    LIMBO_FAIL_POINT("release.after_lost");
  }
  jobs.clear();
}

void ReleaseQueue::notice_loss(int device) noexcept {
  lost_devices_.fetch_or(std::uint64_t{1} << (device & 63), std::memory_order_acq_rel);
  ReleaseJobs lost;
  std::list<Batch> batches;
  const auto take = [&](ReleaseJobs& from) {
    for (auto job = from.begin(); job != from.end();) {
      const auto current = job++;
      if (current->mapping->device() == device) lost.splice(lost.end(), from, current);
    }
  };
  {
    const std::lock_guard lock(mutex_);
    for (auto& [key, landing] : landing_) {
      for (auto batch = landing.batches.begin(); batch != landing.batches.end();) {
        const auto current = batch++;
        if (current->jobs.front().mapping->device() != device) continue;
        batches.splice(batches.end(), landing.batches, current);
      }
    }
    for (ReleaseJobs* list : {&parked_, &idle_, &failed_, &kept_}) take(*list);
    for (auto group = waiting_.begin(); group != waiting_.end();) {
      take(group->second);
      group = group->second.empty() ? waiting_.erase(group) : std::next(group);
    }
    std::uint64_t count = lost.size();
    for (const Batch& batch : batches) count += batch.jobs.size();
    in_hands_.fetch_add(count);
  }
  for (Batch& batch : batches) {
    room_.give_back(batch.room);
    lost.splice(lost.end(), batch.jobs);
  }
  const std::uint64_t count = lost.size();
  end_lost(lost);
  in_hands_.fetch_sub(count);
}

// A batch on a lost device never lands.
// As a program asks that has not been told of captures: the one that is under way is lost.
void ReleaseQueue::ask_globally(int device) {
  const StreamRoom::Event event = room_.take_event(device);
  (void)as_sim(device_).query_event_globally(device, event.handle);
}

void ReleaseQueue::look_for_losses(Clock::time_point now) {
  if (now < next_look_for_losses_) return;
  next_look_for_losses_ = now + kLookForLosses;
  std::uint64_t devices = 0;
  {
    const std::lock_guard lock(mutex_);
    const auto note = [&](const ReleaseJobs& jobs) {
      for (const ReleaseJob& job : jobs) {
        devices |= std::uint64_t{1} << (job.mapping->device() & 63);
      }
    };
    for (const auto& [key, landing] : landing_) {
      if (!landing.batches.empty()) note(landing.batches.front().jobs);
    }
    for (const auto& [key, jobs] : waiting_) {
      devices |= std::uint64_t{1} << (key.streams.front().stream.device & 63);
    }
    note(parked_);
  }
  for (int device = 0; device < 64; ++device) {
    if ((devices >> device & 1) == 0) continue;
    if (protocol::makes(protocol::Mistake::kGlobalCaptureMode)) ask_globally(device);
    // One that came while the loss was being noticed is taken now.
    if (device_.is_lost(device)) notice_loss(device);
  }
}

// ---- for ever ---------------------------------------------------------------------------------

void ReleaseQueue::keep(ReleaseJobs& jobs, const char* why) noexcept {
  put(kept_, jobs);
  if (stopped_.load() || warned_.exchange(true)) return;
  std::fprintf(stderr,
               "limbo: a received block cannot be given back (%s); its sender gets it back when "
               "this process ends. Further ones are not reported.\n",
               why);
}

}  // namespace limbo
