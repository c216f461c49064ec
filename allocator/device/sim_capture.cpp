#include "allocator/device/sim_capture.h"

#include <algorithm>
#include <iterator>

namespace limbo::sim {

std::shared_ptr<Capture> Captures::of(std::uint32_t slot) {
  const std::lock_guard lock(mutex_);
  const auto found = by_slot_.find(slot);
  return found == by_slot_.end() ? nullptr : found->second;
}

bool Captures::add(std::uint32_t slot, const Op& op, std::span<const Write> writes) {
  const std::lock_guard lock(mutex_);
  const auto found = by_slot_.find(slot);
  if (found == by_slot_.end()) return false;
  found->second->graph->nodes.push_back({op, {writes.begin(), writes.end()}});
  ++found->second->clocks[slot][slot];
  return true;
}

bool Captures::keep(std::uint32_t slot, const std::shared_ptr<void>& object) {
  const std::lock_guard lock(mutex_);
  const auto found = by_slot_.find(slot);
  if (found == by_slot_.end() || !found->second->valid) return false;
  found->second->graph->kept.push_back(object);
  return true;
}

CaptureClock Captures::clock(std::uint32_t slot) {
  const std::lock_guard lock(mutex_);
  const auto found = by_slot_.find(slot);
  return found == by_slot_.end() ? CaptureClock{} : found->second->clocks[slot];
}

bool Captures::join(std::uint32_t slot, const std::shared_ptr<Capture>& capture,
                    const CaptureClock& clock) {
  const std::lock_guard lock(mutex_);
  const auto origin = by_slot_.find(capture->origin);
  if (origin == by_slot_.end() || origin->second != capture) return false;
  if (by_slot_.try_emplace(slot, capture).first->second != capture) return false;
  CaptureClock& own = capture->clocks[slot];
  for (const auto& [other, count] : clock) own[other] = std::max(own[other], count);
  return true;
}

bool Captures::begin(std::uint32_t slot, SimCaptureMode mode) {
  const std::lock_guard lock(mutex_);
  auto capture = std::make_shared<Capture>();
  capture->origin = slot;
  capture->mode = mode;
  return by_slot_.try_emplace(slot, std::move(capture)).second;
}

std::shared_ptr<Capture> Captures::end(std::uint32_t slot) {
  const std::lock_guard lock(mutex_);
  const auto found = by_slot_.find(slot);
  if (found == by_slot_.end() || found->second->origin != slot) return nullptr;
  std::shared_ptr<Capture> capture = found->second;
  std::erase_if(by_slot_, [&](const auto& entry) { return entry.second == capture; });
  return capture;
}

void Captures::invalidate(std::uint32_t slot) {
  const std::lock_guard lock(mutex_);
  if (const auto found = by_slot_.find(slot); found != by_slot_.end()) {
    found->second->valid = false;
  }
}

bool Captures::invalidate_global() {
  const std::lock_guard lock(mutex_);
  bool any = false;
  for (auto& [slot, capture] : by_slot_) {
    if (capture->mode != SimCaptureMode::kGlobal) continue;
    capture->valid = false;
    any = true;
  }
  return any;
}

}  // namespace limbo::sim
