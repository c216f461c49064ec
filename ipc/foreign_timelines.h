// The timelines of other consumers of one producer, who have sent on what this process has opened:
// asked for at the first message that names them, kept while their owner lives or its waits have to
// be completed.
//
// When such a forwarder has died, its waits are completed here, again and again until it is quiet,
// as ProducerLink does for a dead producer: the producer may be dead too.
#pragma once

#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>

#include "ipc/lease_timelines.h"
#include "ipc/lease_watch.h"
#include "ipc/owned_fd.h"

namespace limbo {

// One forwarder, as a third process sees it.
struct ForeignTimelines {
  std::shared_ptr<LeaseTimelines> timelines;
  // Of the reaper alone, once it watches:
  OwnedFd pidfd;
  OwnedFd life_line;
  std::uint32_t life_line_flags = 0;
  std::unique_ptr<PeerWatch> watch;
};

class ForeignTimelinesTable {
 public:
  using Clock = DeathSigns::Clock;
  // Gets one from the producer; may wait and throw.
  using Ask = std::function<ForeignTimelines(std::uint32_t lease)>;

  // Those of `lease`. Two threads that want the same may ask twice; one answer is kept.
  [[nodiscard]] std::shared_ptr<LeaseTimelines> get(std::uint32_t lease, const Ask& ask);
  [[nodiscard]] std::size_t size();
  // Whether get would have to ask.
  [[nodiscard]] bool has(std::uint32_t lease);

  // ---- the reaper's: no device call ------------------------------------------------------------
  // Completes the waits on forwarders that are gone; when to be called again, if at all.
  // `owner_gone`: there is nobody any more who would know of an exec.
  [[nodiscard]] std::optional<Clock::time_point> run(ServiceThread& reaper, Clock::time_point now,
                                                     bool owner_gone);
  void unwatch();

  // ---- the unmapper's --------------------------------------------------------------------------
  // Forgets those that are quiet and complete; waits for the devices that have waited on them.
  void drop_finished();
  [[nodiscard]] bool has_finished();
  // Nobody waits for any of them any more: whoever has received from them and lives on asks only what
  // has come of their numbers, and the device forgets them now.
  void end() noexcept;

 private:
  std::mutex mutex_;  // guards the table; a leaf
  std::map<std::uint32_t, ForeignTimelines> table_;
  std::list<std::shared_ptr<LeaseTimelines>> finished_;
};

}  // namespace limbo
