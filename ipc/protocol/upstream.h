// What a message is made of that had not come when it was sent on: the numbers of those who sent it on
// before its sender did.
//
// A lends to B, B writes and sends on to C, C sends on to D. D's stream waits for C's number, which
// comes behind B's. Where B dies first, its number is completed, C's comes, and nothing of it tells D
// that B's write is missing. So the export that is made for C names B's number too, if that was still
// on its way; and so on down the chain: what had come is left out, of each timeline only the last
// number stands (if it came, so did the earlier ones), and what is known never to come is one bit. D
// waits for none of them. It looks at B's timeline itself when it is asked: whoever ended that wrote
// down how far it had got before anybody was let pass, so whoever has seen D's stream pass sees it,
// and neither A nor C has to have noticed B's death.
//
// | word              | from, to         | who, when                | order   | why a death is       |
// |                   |                  |                          |         | harmless             |
// |-------------------|------------------|--------------------------|---------|----------------------|
// | where, number,    | of a row that no | owner, under the collect | relaxed | of the owner: the    |
// | next of a row     | open export has: | lock, before OPEN        |         | ledger dies too, and |
// |                   | a number         |                          |         | who holds the block  |
// |                   |                  |                          |         | has an orphan anyway |
// | `upstream` of an  | anything: lost,  | owner, as all fields of  | relaxed | the same             |
// | export            | or count and row | an export (publish.h)    |         |                      |
//
// One message names kMostUpstream of them at most; what would name more is not sent on.
//
// OPEN publishes them. They are read behind a claim that stands, relaxed, and stay as they are for as
// long as the export is not over; then its rows are others'. A forwarder's death changes none of them,
// at whatever point: it shows in the words of its timelines (timeline.h), which the owner and all who
// have opened such a message keep.
//
// The mark says that something was not done, not what the memory holds: a forwarder that has written
// all of it anew sends the mark on all the same. A clone() of it has none.
#pragma once

#include <cstdint>

#include "ipc/protocol/memory.h"
#include "ipc/protocol/words.h"

namespace limbo::protocol {

// Numbers that had not come, of one message. Each process adds one or two, and only while none of
// what was queued before has run: a chain of thirty processes that all are behind goes through. Whoever
// looks for one in a list goes through so many at most, under the collect lock.
inline constexpr std::uint32_t kMostUpstream = 64;

// For the owner, before an export that leads to the row is opened. `next`: a row + 1; 0: none.
template <class Memory, class Ledger>
void write_upstream(Memory& memory, const Ledger& ledger, std::uint32_t row, std::uint64_t where,
                    std::uint64_t number, std::uint32_t next) {
  memory.store(ledger.upstream_where(row), where, std::memory_order_relaxed);
  memory.store(ledger.upstream_number(row), number, std::memory_order_relaxed);
  memory.store(ledger.upstream_next(row), next, std::memory_order_relaxed);
}

// For a consumer, behind a claim that stands: visit(where, number) for each. False: the word leads to
// rows that there cannot be.
template <class Memory, class Ledger, class Visitor>
bool read_upstream(Memory& memory, const Ledger& ledger, const UpstreamWord& word,
                   Visitor&& visit) {
  if (word.count > kMostUpstream) return false;
  std::uint64_t link = word.first;
  for (std::uint32_t count = 0; count < word.count; ++count) {
    if (link == 0 || link > ledger.upstream_rows()) return false;
    const auto row = static_cast<std::uint32_t>(link - 1);
    visit(memory.load(ledger.upstream_where(row), std::memory_order_relaxed),
          memory.load(ledger.upstream_number(row), std::memory_order_relaxed));
    link = memory.load(ledger.upstream_next(row), std::memory_order_relaxed);
  }
  return link == 0;
}

}  // namespace limbo::protocol
