#include "ipc/foreign_timelines.h"

#include <utility>

#include "ipc/fail_points.h"

namespace limbo {
namespace {

// A late write of its GPU may set a timeline back.
constexpr std::chrono::milliseconds kCompleteForeignAgain{20};

}  // namespace

std::size_t ForeignTimelinesTable::size() {
  const std::lock_guard lock(mutex_);
  return table_.size();
}

bool ForeignTimelinesTable::has(std::uint32_t lease) {
  const std::lock_guard lock(mutex_);
  return table_.find(lease) != table_.end();
}

std::shared_ptr<LeaseTimelines> ForeignTimelinesTable::get(std::uint32_t lease, const Ask& ask) {
  {
    const std::lock_guard lock(mutex_);
    if (const auto found = table_.find(lease); found != table_.end()) {
      return found->second.timelines;
    }
  }
  ForeignTimelines answer = ask(lease);
  const std::lock_guard lock(mutex_);
  return table_.try_emplace(lease, std::move(answer)).first->second.timelines;
}

std::optional<ForeignTimelinesTable::Clock::time_point> ForeignTimelinesTable::run(
    ServiceThread& reaper, Clock::time_point now, bool owner_gone) {
  std::optional<Clock::time_point> next;
  const auto wake_at = [&](Clock::time_point when) {
    if (!next || when < *next) next = when;
  };
  const std::lock_guard lock(mutex_);
  for (auto entry = table_.begin(); entry != table_.end();) {
    const auto current = entry++;
    ForeignTimelines& foreign = current->second;
    if (!foreign.watch) {
      // What the signs mean is looked at here, and this follows every event.
      foreign.watch =
          std::make_unique<PeerWatch>(reaper, std::move(foreign.pidfd),
                                      std::move(foreign.life_line), foreign.life_line_flags, [] {});
    }
    (void)foreign.watch->try_again();
    if (!foreign.watch->stands()) wake_at(now + ServiceThread::kWatchAgain);
    DeathSigns& signs = foreign.watch->signs();
    // Its connection is its owner's: while that lives, it sees an exec and completes the waits.
    signs.connection_closed = owner_gone;
    const auto quiet_at = signs.quiet_at(now);
    if (!signs.gone()) continue;
    LIMBO_FAIL_POINT("forwarder.before_complete");
    foreign.timelines->complete();
    LIMBO_FAIL_POINT("forwarder.after_complete");
    if (!quiet_at || *quiet_at > now) {
      wake_at(now + kCompleteForeignAgain);
      continue;
    }
    finished_.push_back(std::move(foreign.timelines));
    table_.erase(current);
  }
  return next;
}

void ForeignTimelinesTable::unwatch() {
  const std::lock_guard lock(mutex_);
  for (auto& [lease, foreign] : table_) foreign.watch.reset();
}

bool ForeignTimelinesTable::has_finished() {
  const std::lock_guard lock(mutex_);
  return !finished_.empty();
}

void ForeignTimelinesTable::end() noexcept {
  for (auto& [lease, foreign] : table_) foreign.timelines->end();
  for (const auto& timelines : finished_) timelines->end();
}

void ForeignTimelinesTable::drop_finished() {
  std::list<std::shared_ptr<LeaseTimelines>> finished;
  {
    const std::lock_guard lock(mutex_);
    finished.swap(finished_);
  }
  while (!finished.empty()) {
    std::list<std::shared_ptr<LeaseTimelines>> one;
    one.splice(one.begin(), finished, finished.begin());
    // Somebody is enqueueing a wait, or a device cannot be waited for: it is looked at again later.
    if (one.front()->finish() && one.front()->settle()) continue;
    const std::lock_guard lock(mutex_);
    finished_.splice(finished_.end(), one);
  }
}

}  // namespace limbo
