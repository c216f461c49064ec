// How requests are rounded, and what a policy may say.
#include <algorithm>
#include <bit>
#include <string>

#include "allocator/allocator_impl.h"
#include "allocator/error.h"

namespace limbo {
namespace {

// Between two powers of two lie `divisions` equal parts; the next of their borders. `divisions` is a
// power of two, at least 2, and size_bytes above kBlockUnit * divisions, so that a part is at least
// one unit.
std::size_t next_border(std::size_t size_bytes, std::size_t divisions) noexcept {
  return sizes::round_up(size_bytes, std::bit_floor(size_bytes) / divisions);
}

void check(bool good, const char* name, const char* range) {
  if (good) return;
  throw Error(ErrorCode::kBadArgument, std::string(name) + " is out of range.", range);
}

}  // namespace

std::size_t AllocationPolicy::block_size(std::size_t requested_bytes) const noexcept {
  const auto power = static_cast<std::size_t>(std::bit_width(requested_bytes)) - 1;  // of two
  constexpr std::size_t kFirst = 20;                                                 // 1 MiB
  const std::size_t interval =
      std::min(power < kFirst ? 0 : power - kFirst, roundup_power2_divisions.size() - 1);
  const std::size_t divisions = roundup_power2_divisions[interval];
  if (divisions > 1 && requested_bytes > sizes::kBlockUnit * divisions) {
    return next_border(requested_bytes, divisions);
  }
  return sizes::block_size(requested_bytes);
}

void Allocator::set_policy(const AllocationPolicy& policy) {
  check(policy.large_segment_bytes > sizes::kMediumLimit &&
            policy.large_segment_bytes % sizes::kSegmentUnit == 0 &&
            policy.large_segment_bytes < sizes::kExabyte,
        "large_segment_bytes", "Use a multiple of 2 MiB of more than 10 MiB.");
  check(policy.max_split_size_bytes > policy.large_segment_bytes, "max_split_size_bytes",
        "Use more than large_segment_bytes (20 MiB where nothing else was set).");
  check(policy.max_non_split_rounding_bytes >= policy.large_segment_bytes,
        "max_non_split_rounding_bytes",
        "Use at least large_segment_bytes (20 MiB where nothing else was set).");
  check(policy.garbage_collection_threshold >= 0 && policy.garbage_collection_threshold < 1,
        "garbage_collection_threshold", "Use 0 (off) or a number below 1.");
  bool rounds = false;
  for (const std::size_t divisions : policy.roundup_power2_divisions) {
    check(divisions == 0 || std::has_single_bit(divisions), "roundup_power2_divisions",
          "Use powers of two, or 0 to round to 512 bytes.");
    rounds = rounds || divisions > 1;
  }
  for (const auto& at : impl_->heaps) {
    const std::lock_guard lock(at->mutex);
    at->policy = policy;
  }
  impl_->large_segment_bytes.store(policy.large_segment_bytes, std::memory_order_relaxed);
  impl_->rounds_requests.store(rounds, std::memory_order_relaxed);
}

std::size_t Allocator::Impl::segment_size(std::size_t block_bytes) const noexcept {
  return sizes::segment_size(block_bytes, large_segment_bytes.load(std::memory_order_relaxed));
}

std::size_t Allocator::Impl::rounded_size(const DeviceHeap& at, const Request& request) const {
  if (!rounds_requests.load(std::memory_order_relaxed)) return request.size_bytes;
  const std::lock_guard lock(at.mutex);
  return at.policy.block_size(request.requested_bytes);
}

}  // namespace limbo
