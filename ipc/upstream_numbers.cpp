#include "ipc/upstream_numbers.h"

#include <algorithm>

#include "ipc/protocol/mistakes.h"
#include "ipc/protocol/timeline.h"

namespace limbo {

using protocol::Arrival;
using protocol::UpstreamWord;

Shortage UpstreamNumbers::add(UpstreamWord& list, const TimelinePoint& point,
                              Forwarder& forwarder) {
  return add(list, point, forwarder, list.first);
}

Shortage UpstreamNumbers::add(UpstreamWord& list, const TimelinePoint& point, Forwarder& forwarder,
                              std::uint32_t named) {
  if (list.lost || protocol::makes(protocol::Mistake::kUpstreamForgotten)) return Shortage::kNone;
  const Arrival arrival = forwarder.timelines->arrival(point.index, point.number);
  if (arrival == Arrival::kCame) return Shortage::kNone;
  // Its owner names only what is named already, or had come when it looked. Where its forwarder has set
  // the word back, nobody could be told of that one's end.
  if (arrival == Arrival::kLost || forwarder.signs == nullptr) {
    lose(list);
    return Shortage::kNone;
  }
  // Of one timeline the last: if that comes, so have the others.
  for (std::uint32_t link = named; link != 0; link = records_[link - 1].next) {
    Record& record = records_[link - 1];
    if (where_of(record.point) != where_of(point)) continue;
    record.point.number = std::max(record.point.number, point.number);
    protocol::write_upstream(protocol::g_memory, ledger_, link - 1, where_of(record.point),
                             record.point.number, record.next);
    return Shortage::kNone;
  }
  if (list.count == protocol::kMostUpstream) return Shortage::kList;
  if (free_ == 0 && next_fresh_ == ledger_.upstream_rows()) return Shortage::kRows;
  const std::uint32_t row = free_ != 0 ? free_ - 1 : next_fresh_++;
  if (free_ != 0) free_ = records_[row].next;
  records_[row] = {point, &forwarder, list.first};
  protocol::write_upstream(protocol::g_memory, ledger_, row, where_of(point), point.number,
                           list.first);
  list.first = row + 1;
  ++list.count;
  ++taken_;
  ++forwarder.named;
  return Shortage::kNone;
}

Shortage UpstreamNumbers::add_all(UpstreamWord& list, const UpstreamWord& from) {
  if (from.lost && !protocol::makes(protocol::Mistake::kUpstreamForgotten)) lose(list);
  const std::uint32_t before = list.first;  // a list names each timeline once
  for (std::uint32_t link = from.first; link != 0; link = records_[link - 1].next) {
    const Record& record = records_[link - 1];
    const Shortage shortage = add(list, record.point, *record.forwarder, before);
    if (shortage != Shortage::kNone) return shortage;
  }
  return Shortage::kNone;
}

void UpstreamNumbers::lose(UpstreamWord& list) noexcept {
  clear(list);
  list.lost = true;
}

void UpstreamNumbers::clear(UpstreamWord& list) noexcept {
  while (list.first != 0) {
    Record& record = records_[list.first - 1];
    record.forwarder->unname();
    --taken_;
    const std::uint32_t next = record.next;
    record.next = free_;
    free_ = list.first;
    list.first = next;
  }
  list = {};
}

}  // namespace limbo
