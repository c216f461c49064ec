// Statistics, limits.
#include <c10/core/AllocatorConfig.h>
#include <c10/cuda/CUDAAllocatorConfig.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cstdint>

#include "hooks/adapter.h"
#include "hooks/error_text.h"
#include "hooks/process.h"

namespace limbo {
namespace {

namespace torch_cuda = c10::cuda::CUDACachingAllocator;
using c10::CachingAllocator::AcceleratorAllocatorConfig;
using c10::cuda::CUDACachingAllocator::CUDAAllocatorConfig;

void check_device(int device) {
  const int count = for_torch([] { return allocator_in_use().device().device_count(); });
  TORCH_CHECK(device >= 0 && device < count, "Invalid device argument ", device, ": there are ",
              count, " devices. Did you call init?");
}

c10::CachingAllocator::Stat to_torch(const Stat& stat) {
  c10::CachingAllocator::Stat result;
  result.current = stat.current;
  result.peak = stat.peak;
  result.allocated = stat.allocated;
  result.freed = stat.freed;
  return result;
}

c10::CachingAllocator::StatArray to_torch(const StatByKind& stats) {
  using c10::CachingAllocator::StatType;
  c10::CachingAllocator::StatArray result;
  const auto set = [&](StatType type, SizeKind kind) {
    result[static_cast<std::size_t>(type)] = to_torch(stats[static_cast<std::size_t>(kind)]);
  };
  set(StatType::AGGREGATE, SizeKind::kAll);
  set(StatType::SMALL_POOL, SizeKind::kSmall);
  set(StatType::LARGE_POOL, SizeKind::kLarge);
  return result;
}

c10::CachingDeviceAllocator::DeviceStats to_torch(const DeviceStats& stats) {
  c10::CachingDeviceAllocator::DeviceStats result;
  result.allocation = to_torch(stats.allocation);
  result.segment = to_torch(stats.segment);
  result.active = to_torch(stats.active);
  result.inactive_split = to_torch(stats.inactive_split);
  result.allocated_bytes = to_torch(stats.allocated_bytes);
  result.reserved_bytes = to_torch(stats.reserved_bytes);
  result.active_bytes = to_torch(stats.active_bytes);
  result.inactive_split_bytes = to_torch(stats.inactive_split_bytes);
  result.requested_bytes = to_torch(stats.requested_bytes);
  result.oversize_allocations = to_torch(stats.oversize_allocations);
  result.oversize_segments = to_torch(stats.oversize_segments);
  result.num_alloc_retries = stats.num_alloc_retries;
  result.num_ooms = stats.num_ooms;
  result.num_sync_all_streams = stats.num_sync_all_streams;
  result.num_device_alloc = stats.num_device_alloc;
  result.num_device_free = stats.num_device_free;
  result.max_split_size = static_cast<std::int64_t>(AcceleratorAllocatorConfig::max_split_size());
  return result;
}

}  // namespace

c10::CachingDeviceAllocator::DeviceStats Adapter::getDeviceStats(c10::DeviceIndex device) {
  check_device(device);
  return to_torch(for_torch([&] { return allocator_in_use().stats(device); }));
}

void Adapter::resetAccumulatedStats(c10::DeviceIndex device) {
  check_device(device);
  for_torch([&] { allocator_in_use().reset_accumulated_stats(device); });
}

void Adapter::resetPeakStats(c10::DeviceIndex device) {
  check_device(device);
  for_torch([&] { allocator_in_use().reset_peak_stats(device); });
}

std::pair<std::size_t, std::size_t> Adapter::getMemoryInfo(c10::DeviceIndex device) {
  check_device(device);
  const MemoryInfo info =
      for_torch([&] { return allocator_in_use().device().memory_info(device); });
  return {info.free_bytes, info.total_bytes};
}

double Adapter::getMemoryFraction(c10::DeviceIndex device) {
  check_device(device);
  const std::lock_guard lock(fractions_mutex_);
  const auto index = static_cast<std::size_t>(device);
  return index < fractions_.size() ? fractions_[index] : 1.0;
}

void Adapter::setMemoryFraction(double fraction, c10::DeviceIndex device) {
  TORCH_CHECK(fraction >= 0 && fraction <= 1, "invalid fraction: ", fraction,
              ". Use a number from 0 to 1.");
  check_device(device);
  set_fraction(fraction, device);
}

void Adapter::settle_fraction() {
  const double fraction = CUDAAllocatorConfig::per_process_memory_fraction();
  {
    const std::lock_guard lock(fractions_mutex_);
    settled_fraction_ = fraction;
    if (!started_) return;  // limit_at_start will
  }
  if (fraction >= 1.0 || in_forked_child()) return;
  const int count = for_torch([] { return allocator_in_use().device().device_count(); });
  for (int device = 0; device < count; ++device) set_fraction(fraction, device);
}

void Adapter::limit_at_start(limbo::Allocator& starting) {
  double fraction = 1;
  {
    const std::lock_guard lock(fractions_mutex_);
    fraction = settled_fraction_;
    started_ = true;
  }
  if (fraction >= 1.0) return;
  const int count = starting.device().device_count();
  for (int device = 0; device < count; ++device) limit(starting, fraction, device);
}

void Adapter::set_fraction(double fraction, int device) {
  for_torch([&] { limit(allocator_in_use(), fraction, device); });
}

void Adapter::limit(limbo::Allocator& allocator, double fraction, int device) {
  // Not by memory_info, which would use a device that nobody uses yet.
  const auto total = static_cast<double>(allocator.device().total_memory_bytes(device));
  // To the allocator 0 means "no limit", to torch it means "nothing".
  const auto limit_bytes = std::max<std::size_t>(1, static_cast<std::size_t>(fraction * total));
  allocator.set_limit_bytes(device, limit_bytes);
  const std::lock_guard lock(fractions_mutex_);
  const auto index = static_cast<std::size_t>(device);
  if (fractions_.size() <= index) fractions_.resize(index + 1, 1.0);
  fractions_[index] = fraction;
}

void Adapter::cacheInfo(c10::DeviceIndex device, std::size_t* largest_bytes) {
  check_device(device);
  // 0 asks for a first guess at what could be had, which the cache can only raise.
  if (*largest_bytes == 0) *largest_bytes = getMemoryInfo(device).first;
  const std::size_t cached =
      for_torch([&] { return allocator_in_use().largest_free_block_bytes(device); });
  *largest_bytes = std::max(*largest_bytes, cached);
}

std::vector<torch_cuda::StreamSegmentSize> Adapter::getExpandableSegmentSizes(
    c10::DeviceIndex /*device*/) {
  return {};  // there are none
}

}  // namespace limbo
