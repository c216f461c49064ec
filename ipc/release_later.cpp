// Releases that take their time: many in one batch, an idle device, for ever.
#include <algorithm>
#include <cstdio>
#include <set>
#include <utility>

#include "allocator/error.h"
#include "ipc/fail_points.h"
#include "ipc/protocol/mistakes.h"
#include "ipc/release_queue.h"

namespace limbo {
// ---- many in one batch ------------------------------------------------------------------------

// As many as fit: an operation for each claim and each group that they are in, one for the row. Where
// it throws they wait as before.
void ReleaseQueue::take_alike(const Alike& key, ReleaseJobs& jobs) {
  std::set<std::uint32_t> groups;
  const std::lock_guard lock(mutex_);
  const auto found = waiting_.find(key);
  if (found == waiting_.end()) return;
  ReleaseJobs& group = found->second;
  auto end = group.begin();
  for (std::size_t count = 0; end != group.end(); ++end, ++count) {
    groups.insert(end->release.slot / protocol::kGroupClaims);
    if (1 + groups.size() + count + 1 > Device::kMaxBatchOperations) break;
  }
  jobs.splice(jobs.end(), group, group.begin(), end);
  if (group.empty()) waiting_.erase(found);
}

// False: nothing is enqueued, and each has to go its own way.
bool ReleaseQueue::enqueue_late(std::list<Batch>& one, StreamRoom::Taken& room) noexcept {
  ReleaseJobs& jobs = one.front().jobs;
  for (ReleaseJob& job : jobs) {
    leave_lost_streams(job);
    if (ends_as_lost(job)) return false;
  }
  try {
    // Asked for all by the first: they have the same streams.
    const StreamQuestion question(device_);
    if (way_of(jobs.front(), false, question) != Way::kEnqueue) return false;
    LIMBO_FAIL_POINT("release.before_late");
  } catch (const std::exception&) {
    return false;  // no host memory, most likely
  }
  one.front().room = std::move(room);
  enqueue(one);
  return true;
}

void ReleaseQueue::enqueue_waiting() {
  std::vector<Alike> keys;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [key, jobs] : waiting_) keys.push_back(key);
  }
  for (const Alike& key : keys) {
    while (true) {
      std::list<Batch> batch(1);
      ReleaseJobs& jobs = batch.front().jobs;
      std::optional<StreamRoom::Taken> room;
      try {
        room = room_.take(key.streams, true, key.streams.front().stream.device);
        if (!room) break;
      } catch (const Error&) {
        // No lane can be made: each goes its own way, which meets the device too.
      }
      try {
        take_alike(key, jobs);
      } catch (...) {
        if (room) room_.give_back(*room);
        throw;
      }
      const std::uint64_t count = jobs.size();
      if (count > 0 && room && enqueue_late(batch, *room)) {
        // On its way.
      } else {
        if (room) room_.give_back(*room);
        if (!room && count > 0 && !names_lost(key.streams, true)) put(idle_, jobs);
        while (!jobs.empty()) {
          ReleaseJobs one;
          one.splice(one.begin(), jobs, jobs.begin());
          start(one, false);
        }
        unmapper_.nudge();
      }
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
  over(job);
}

bool ReleaseQueue::run_when_idle() noexcept {
  if (stopped_.load()) return false;
  ReleaseJobs jobs;
  {
    const std::lock_guard lock(mutex_);
    jobs.splice(jobs.end(), idle_);
  }
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
    try {
      leave_lost_streams(job);
      if (ends_as_lost(job)) {
        end_lost(one);
        continue;
      }
      for (const StreamUse& use : job.streams) wait_for(use.stream.device);
      LIMBO_FAIL_POINT("release.when_idle");
      end_by_host(job, job.unknown_graph);
    } catch (const std::exception&) {
      const bool lost = names_lost(job.streams, true);
      put(lost ? failed_ : idle_, one);  // starts again without that device's streams
      if (lost) releaser_.nudge();
    }
  }
  const std::lock_guard lock(mutex_);
  return !idle_.empty();
}

// ---- for ever ---------------------------------------------------------------------------------

void ReleaseQueue::keep(ReleaseJobs& jobs, const char* why) noexcept {
  for (const ReleaseJob& job : jobs) over(job);
  put(kept_, jobs);
  if (stopped_.load() || warned_.exchange(true)) return;
  std::fprintf(stderr,
               "limbo: a received block cannot be given back (%s); its sender gets it back when "
               "this process ends. Further ones are not reported.\n",
               why);
}

}  // namespace limbo
