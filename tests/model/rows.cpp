#include "tests/model/rows.h"

#include <algorithm>

namespace limbo::model {

using protocol::ExportState;
using protocol::makes;
using protocol::Mistake;

void break_rule(World& world, Rule rule, std::uint32_t about) {
  Truth& truth = world.own.truth;
  if (truth.broken != 0) return;
  truth.broken = static_cast<std::uint8_t>(rule);
  truth.about = static_cast<std::uint8_t>(about);
}

void ModelExports::claimed_by(std::uint32_t index, std::uint32_t who) {
  Record& export_record = record(index);
  const auto bit = static_cast<std::uint8_t>(1U << who);
  if ((export_record.leases_seen & bit) != 0 && !makes(Mistake::kClaimsCountedPerOpen)) return;
  export_record.leases_seen |= bit;
  if (export_record.in_flight == 0) {
    if (makes(Mistake::kCountBelowZero)) break_rule(world_, Rule::kCountBelowZero, index);
    return;
  }
  --export_record.in_flight;
  changed(index);
}

void ModelExports::held_more(std::uint32_t index, const ModelRow&, std::uint32_t) {
  ++record(index).held;
  changed(index);
}

void ModelExports::held_less(std::uint32_t index, const ModelRow&, std::uint32_t) {
  if (record(index).held == 0) return break_rule(world_, Rule::kCountBelowZero, index);
  --record(index).held;
  changed(index);
}

std::uint32_t ModelExports::held(std::uint32_t index) const {
  const bool ignored =
      makes(Mistake::kTtlOnHeld) && read(index).reason == protocol::EndReason::kExpired;
  return ignored ? 0 : record(index).held;
}

void ModelExports::over(std::uint32_t index) {
  leave_lists(index);
  record(index).in_use = false;
  world_.own.producer.over |= static_cast<std::uint8_t>(1U << index);
}

void ModelExports::stays(std::uint32_t index, bool complete) {
  if (!complete) changed(index);
}

std::uint32_t ModelExports::reserve(std::uint32_t block, std::uint32_t consumers) {
  for (std::uint32_t index = 0; index < kExports; ++index) {
    Record& slot = record(index);
    if (slot.in_use || slot.to_unpin) continue;
    slot = {};
    slot.generation = static_cast<std::uint8_t>(read(index).generation);
    slot.block = static_cast<std::uint8_t>(block);
    slot.in_flight = static_cast<std::uint8_t>(consumers);
    slot.in_use = true;
    slot.to_unpin = true;
    return index;
  }
  return kNoIndex;
}

void ModelExports::let_go(std::uint32_t block) {
  for (std::uint32_t index = 0; index < kExports; ++index) {
    Record& slot = record(index);
    if (!slot.in_use || slot.block != block || slot.let_go) continue;
    slot.let_go = true;
    if (slot.in_flight == 0 && !makes(Mistake::kDirtyOnlyCandidates)) changed(index);
  }
}

void ModelExports::clear_in_flight(std::uint32_t index) {
  record(index).in_flight = 0;
  changed(index);
}

bool ModelExports::more_than_half_full(std::uint32_t table, std::uint32_t closing) const {
  std::uint32_t open = 0;
  for (std::uint32_t index = 0; index < kExports; ++index) open += record(index).in_use ? 1 : 0;
  return open > closing + table / 2;
}

std::uint32_t ModelExports::first_of(List list) const {
  const Producer& producer = world_.own.producer;
  for (std::uint32_t i = 0; i < producer.queued; ++i) {
    if (record(producer.queue[i]).list == list) return producer.queue[i];
  }
  return kNoIndex;
}

std::uint8_t ModelExports::collect_batch(std::uint8_t& left, std::uint32_t table) {
  std::uint8_t batch = 0;
  std::uint32_t count = 0;
  while (left > 0) {
    const std::uint32_t first = first_of(List::kCandidates);
    if (first == kNoIndex) break;
    --left;
    leave_lists(first);
    const Record& slot = record(first);
    const auto state = read(first).state;
    const bool ready = state == ExportState::kOpen || state == ExportState::kDraining;
    if (held(first) != 0 || slot.in_flight != 0 || !ready) continue;
    if (slot.let_go) {
      batch |= static_cast<std::uint8_t>(1U << first);
      ++count;
    } else {
      push(first, List::kIdle);
    }
  }
  for (; more_than_half_full(table, count); ++count) {
    const std::uint32_t first = first_of(List::kIdle);
    if (first == kNoIndex) break;
    leave_lists(first);
    batch |= static_cast<std::uint8_t>(1U << first);
  }
  return batch;
}

std::uint32_t ModelExports::candidates() const {
  std::uint32_t count = 0;
  for (std::uint32_t index = 0; index < kExports; ++index) {
    count += record(index).list == List::kCandidates ? 1 : 0;
  }
  return count;
}

void ModelExports::changed(std::uint32_t index) {
  if (record(index).list == List::kCandidates) return;
  leave_lists(index);
  push(index, List::kCandidates);
}

void ModelExports::leave_lists(std::uint32_t index) {
  Producer& producer = world_.own.producer;
  if (record(index).list == List::kNone) return;
  record(index).list = List::kNone;
  auto* const end = producer.queue.begin() + producer.queued;
  std::copy(std::find(producer.queue.begin(), end, index) + 1, end,
            std::find(producer.queue.begin(), end, index));
  producer.queue[--producer.queued] = 0;
}

void ModelExports::push(std::uint32_t index, List list) {
  Producer& producer = world_.own.producer;
  record(index).list = list;
  producer.queue[producer.queued++] = static_cast<std::uint8_t>(index);
}

}  // namespace limbo::model
