// Storages over memory of other processes (or of this one, received back).
//
// Such a storage has no allocator, cannot grow, and is marked as received; the claim
// (ReceivedBlock) is its DataPtr's context and ends with it. Two messages of one storage give one
// StorageImpl, as long as it lives: it is found by its ReceivedKey, held weakly.
//
// A weak pointer is turned into a strong one outside the table's lock: that step may take the GIL.
#pragma once

#include <c10/core/Allocator.h>
#include <c10/core/StorageImpl.h>
#include <c10/util/intrusive_ptr.h>

#include <memory>

#include "ipc/sharing.h"

namespace limbo {

// The storage of `block`. Lives one of this key already, then it is used: it notes `current` as a
// stream that uses it too (receive has made that stream wait for the message's own number), takes over
// what that message promised (ReceivedBlock::came_also_by), and `block`, the second claim, is given
// back.
[[nodiscard]] c10::intrusive_ptr<c10::StorageImpl> storage_of(std::unique_ptr<ReceivedBlock> block,
                                                              StreamRef current);

// The claim behind `data`, null when it is not the pointer of a received storage.
[[nodiscard]] ReceivedBlock* received_block(const c10::DataPtr& data) noexcept;

// Notes that received memory is used on `stream`: by the claim in `data`, else by every living
// claim whose range holds the address. False when there is none.
bool record_received(const c10::DataPtr& data, StreamRef stream);

// Entries in the table, for tests: received storages that live.
[[nodiscard]] std::size_t received_storage_count();

}  // namespace limbo
