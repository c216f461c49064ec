// What a producer keeps about a consumer that has forwarded: its timelines, and the signs of its
// death, for third processes and for this one. Guarded by the collect lock.
//
// It outlives the lease for as long as an export that is not over names it: whoever opens such a
// message asks for its files, which are open for so long.
#pragma once

#include <cstdint>
#include <memory>
#include <set>

#include "ipc/layout.h"
#include "ipc/lease_timelines.h"
#include "ipc/owned_fd.h"
#include "ipc/process_identity.h"

namespace limbo {

// By what its end is known.
struct ForwarderSigns {
  OwnedFd pidfd;
  OwnedFd life_line;  // the far end
  std::uint32_t life_line_flags = 0;
};

struct Forwarder {
  std::uint32_t lease_number = 0;
  ProcessIdentity identity;  // of its process, which may have a newer lease by now
  std::shared_ptr<LeaseTimelines> timelines;
  std::shared_ptr<const ForwarderSigns> signs;  // while it is named
  // So often by exports that are not over: as who has sent it on, or one before (protocol/upstream.h).
  std::uint64_t named = 0;
  // What its exports that are not over take: of the ledger's exports, and of its upstream rows.
  std::uint32_t exports = 0;
  std::uint32_t rows = 0;
  // Exports of which it has not said yet that it has heard: nobody else knows of them.
  std::set<std::uint32_t> unheard;
  // Its GPU writes nothing any more. Until then its timelines are completed again and again, also
  // when its lease was ended by force.
  bool quiet = false;

  // An export that it has sent on is over.
  void forget(std::uint32_t export_index) noexcept {
    unheard.erase(export_index);
    unname();
  }
  void unname() noexcept {
    if (--named == 0) signs.reset();
  }
};

// A number of a forwarder's, and what is needed to name it once more.
struct ForwardersNumber {
  TimelinePoint point;
  std::shared_ptr<LeaseTimelines> timelines;
  std::shared_ptr<const ForwarderSigns> signs;
};

// The files of a forwarder that a third process is handed, duplicates.
struct ForwarderFiles {
  std::shared_ptr<LeaseTimelines> timelines;  // keeps its descriptor open
  OwnedFd pidfd;
  OwnedFd life_line;
  std::uint32_t life_line_flags = 0;
};

}  // namespace limbo
