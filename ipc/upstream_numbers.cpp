#include "ipc/upstream_numbers.h"

#include <algorithm>

#include "ipc/protocol/mistakes.h"
#include "ipc/protocol/timeline.h"

namespace limbo {

using protocol::Arrival;
using protocol::UpstreamWord;

bool UpstreamNumbers::add(UpstreamWord& list, const TimelinePoint& point, Forwarder& forwarder) {
  if (list.lost || protocol::makes(protocol::Mistake::kUpstreamForgotten)) return true;
  const Arrival arrival = forwarder.timelines->arrival(point.index, point.number);
  if (arrival == Arrival::kCame) return true;
  if (arrival == Arrival::kLost) {
    lose(list);
    return true;
  }
  // Of one timeline the last: if that comes, so have the others.
  for (std::uint32_t link = list.first; link != 0; link = records_[link - 1].next) {
    Record& record = records_[link - 1];
    if (where_of(record.point) != where_of(point)) continue;
    record.point.number = std::max(record.point.number, point.number);
    protocol::write_upstream(protocol::g_memory, ledger_, link - 1, where_of(record.point),
                             record.point.number, record.next);
    return true;
  }
  if (free_ == 0 && next_fresh_ == ledger_.upstream_rows()) return false;
  const std::uint32_t row = free_ != 0 ? free_ - 1 : next_fresh_++;
  if (free_ != 0) free_ = records_[row].next;
  records_[row] = {point, &forwarder, list.first};
  protocol::write_upstream(protocol::g_memory, ledger_, row, where_of(point), point.number,
                           list.first);
  list.first = row + 1;
  ++list.count;
  ++taken_;
  ++forwarder.named;
  return true;
}

bool UpstreamNumbers::add_all(UpstreamWord& list, const UpstreamWord& from) {
  if (from.lost && !protocol::makes(protocol::Mistake::kUpstreamForgotten)) lose(list);
  for (std::uint32_t link = from.first; link != 0; link = records_[link - 1].next) {
    if (!add(list, records_[link - 1].point, *records_[link - 1].forwarder)) return false;
  }
  return true;
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
