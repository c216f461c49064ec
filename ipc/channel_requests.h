// What a consumer asks its producer for and waits for, at most a second: an export of what it holds,
// to send it on; and the timelines of a lease that has sent on.
//
// Answered on the reaper and at once (the worker may be waiting for the device), so no device call.
#pragma once

#include <cstdint>

#include "ipc/channel.h"
#include "ipc/channel_bounds.h"
#include "ipc/lease_watch.h"
#include "ipc/messages.h"

namespace limbo {

struct Asker {
  int socket = -1;
  std::uint32_t lease = 0;
  const PeerWatch& watch;
};

// An answer that does not reach the asker is taken back, on the worker: nobody will send it on.
// `turn` lasts until then. Throws nothing.
void answer_forward(LeaseKeeper& keeper, ServiceThread& worker, const Asker& asker,
                    const Forward& message, const Backlog::Turn& turn) noexcept;
void answer_timeline(LeaseKeeper& keeper, const Asker& asker, const AskTimelines& message);

}  // namespace limbo
