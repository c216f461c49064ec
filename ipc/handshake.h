// The consumer's end of the channel: reaching a producer, and what its welcome brings.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>

#include "ipc/call.h"
#include "ipc/channel.h"
#include "ipc/connection.h"
#include "ipc/layout.h"
#include "ipc/owned_fd.h"

namespace limbo {

// An answered handshake. Whoever maps the tables checks their sizes and seals (shared_memory.h).
struct Handshake {
  Connection socket;     // says bye unless it is taken over
  std::int64_t pid = 0;  // for people only
  OwnedFd pidfd;
  OwnedFd life_line;
  std::uint32_t life_line_flags = 0;       // of the producer's
  std::uint32_t told_life_line_flags = 0;  // of this process's own, in hello
  std::uint32_t lease_number = 0;
  Capacities capacities;
  OwnedFd ledger;         // read-only
  OwnedFd timelines;      // readable and writable
  OwnedFd row;            // readable and writable
  OwnedFd own_timelines;  // readable and writable: this process's, for this producer
};

// Connects and says hello; waits for the answer, at most `deadline` in all. Throws kProducerExited
// when nobody listens there any more, kNoChannel (with the path and the cause) when it cannot be
// reached, speaks another version or does not answer in time (a stopped process does not), and what
// the producer refuses with. `promised`: the messages that the connection is wanted for; the
// connection declines them if it ends before settle().
[[nodiscard]] Handshake shake_hands(const ProducerAddress& address, const Incarnation& own,
                                    std::chrono::milliseconds deadline = kHandshakeDeadline,
                                    std::shared_ptr<PromisedMessages> promised = nullptr);

}  // namespace limbo
