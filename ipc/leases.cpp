#include "ipc/leases.h"

#include <algorithm>
#include <utility>

namespace limbo {

Lease::Lease(std::uint32_t number, const LeasePeer& peer, const Capacities& capacities,
             std::int64_t scans_per_second, std::shared_ptr<LeaseTimelines> timelines)
    : number_(number),
      peer_(peer),
      memory_(SharedMemory::create("limbo-row-" + std::to_string(number),
                                   row_layout(capacities).total, ReceiverMay::kWrite)),
      timelines_(std::move(timelines)),
      view_(memory_.data(), capacities),
      groups_(view_.groups()),
      slots_(capacities.claims),
      scans_per_second_(scans_per_second),
      scans_burst_(std::max<std::int64_t>(scans_per_second / 10, 1)),
      scans_left_(scans_burst_),
      scans_counted_(ProducerClock::now()) {}

// A bucket that fills by the second and holds a tenth of a second's scans; the clock is read only
// when it is empty.
bool Lease::may_scan() noexcept {
  if (scans_left_ == 0) {
    const auto now = ProducerClock::now();
    const auto passed =
        std::chrono::duration_cast<std::chrono::microseconds>(now - scans_counted_).count();
    const std::int64_t refill =
        std::min<std::int64_t>(passed, 1'000'000) * scans_per_second_ / 1'000'000;
    if (refill == 0) return false;
    scans_left_ = std::min(refill, scans_burst_);
    scans_counted_ = now;
  }
  --scans_left_;
  return true;
}

void Lease::mirrored(std::uint32_t slot, ProducerClock::time_point now) noexcept {
  slots_[slot].noted = now;
  ++groups_[slot / protocol::kGroupClaims].mirrors;
  ++mirrors_;
}

void Lease::unmirrored(std::uint32_t slot) noexcept {
  --groups_[slot / protocol::kGroupClaims].mirrors;
  --mirrors_;
}

}  // namespace limbo
