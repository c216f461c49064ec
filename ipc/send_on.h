// Sending on what another process has lent: its owner is asked for an export of the same block,
// which this process then names as its own message.
#pragma once

#include <cstddef>

#include "allocator/device/device.h"
#include "ipc/holdings.h"
#include "ipc/sharing.h"

namespace limbo {

struct Descriptor;

// Fills the address, the boot id and the ticket of `descriptor` for a message of [data, data +
// size_bytes), which lies in what is held. Waits for the owner's answer, at most a second, with no
// lock held. Errors: kBadArgument, kNotAvailableYet (a stream that is being captured), kNotLendable
// (the stream that received it is gone), kWithdrawn, kExpired, kLedgerFull, kNoChannel,
// kProducerExited, kDeviceError. After an error nothing is open.
void send_on(Device& device, const Holding& held, const void* data, std::size_t size_bytes,
             const ShareOptions& options, Descriptor& descriptor);

}  // namespace limbo
