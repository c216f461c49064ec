// Statistics, limits, snapshots.
#include <c10/core/AllocatorConfig.h>
#include <c10/cuda/CUDAAllocatorConfig.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <bit>
#include <cstdint>

#include "hooks/adapter.h"
#include "hooks/error_text.h"
#include "hooks/out_of_memory.h"
#include "hooks/process.h"

namespace limbo {
namespace {

namespace torch_cuda = c10::cuda::CUDACachingAllocator;
using c10::CachingAllocator::AcceleratorAllocatorConfig;

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
  result.num_alloc_retries = stats.num_alloc_retries;
  result.num_ooms = stats.num_ooms;
  result.num_sync_all_streams = stats.num_sync_all_streams;
  result.num_device_alloc = stats.num_device_alloc;
  result.num_device_free = stats.num_device_free;
  result.max_split_size = static_cast<std::int64_t>(AcceleratorAllocatorConfig::max_split_size());
  return result;
}

c10::CachingDeviceAllocator::SegmentInfo to_torch(const SegmentView& segment) {
  c10::CachingDeviceAllocator::SegmentInfo result;
  result.device = static_cast<c10::DeviceIndex>(segment.stream.device);
  result.address = std::bit_cast<std::size_t>(segment.base);
  result.total_size = segment.size_bytes;
  result.requested_size = segment.requested_bytes;
  result.allocated_size = segment.allocated_bytes;
  result.active_size = segment.active_bytes;
  result.stream = segment.stream.handle;
  result.is_large = segment.large;
  result.blocks.reserve(segment.blocks.size());
  for (const SegmentView::BlockState& block : segment.blocks) {
    c10::CachingDeviceAllocator::BlockInfo info;
    info.size = block.size_bytes;
    info.requested_size = block.requested_bytes;
    info.allocated = block.allocated;
    info.active = block.active;
    result.blocks.push_back(info);
  }
  return result;
}

torch_cuda::AllocatorConfigInfo settings() {
  using torch_cuda::CUDAAllocatorConfig;
  torch_cuda::AllocatorConfigInfo info{};
  info.garbage_collection_threshold = AcceleratorAllocatorConfig::garbage_collection_threshold();
  info.max_split_size = AcceleratorAllocatorConfig::max_split_size();
  info.pinned_num_register_threads = CUDAAllocatorConfig::pinned_num_register_threads();
  info.expandable_segments = false;  // there is no provider for them yet, whatever was asked for
  info.release_lock_on_malloc = CUDAAllocatorConfig::release_lock_on_cudamalloc();
  info.pinned_use_host_register = CUDAAllocatorConfig::pinned_use_cuda_host_register();
  info.graph_capture_record_stream_reuse = CUDAAllocatorConfig::graph_capture_record_stream_reuse();
  info.last_allocator_settings = c10::CachingAllocator::getAllocatorSettings();
  info.roundup_power2_divisions = AcceleratorAllocatorConfig::roundup_power2_divisions();
  return info;
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

void Adapter::set_fraction(double fraction, int device) {
  for_torch([&] {
    auto& allocator = allocator_in_use();
    const auto total = static_cast<double>(allocator.device().memory_info(device).total_bytes);
    // To the allocator 0 means "no limit", to torch it means "nothing".
    const auto limit_bytes = std::max<std::size_t>(1, static_cast<std::size_t>(fraction * total));
    allocator.set_limit_bytes(device, limit_bytes);
  });
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

torch_cuda::SnapshotInfo Adapter::snapshot(c10::MempoolId_t pool, bool /*include_traces*/) {
  torch_cuda::SnapshotInfo result;
  result.config_metadata = settings();
  for_torch([&] {
    auto& allocator = allocator_in_use();
    // No history is kept yet: one empty trace per device.
    result.device_traces.resize(static_cast<std::size_t>(allocator.device().device_count()));
    // There are no private pools yet, so all segments belong to the default one.
    if (pool != c10::MempoolId_t{0, 0}) return;
    std::vector<SegmentView> segments = allocator.snapshot();
    std::sort(segments.begin(), segments.end(),
              [](const SegmentView& a, const SegmentView& b) { return a.base < b.base; });
    result.segments.reserve(segments.size());
    for (const SegmentView& segment : segments) result.segments.push_back(to_torch(segment));
  });
  return result;
}

std::vector<torch_cuda::StreamSegmentSize> Adapter::getExpandableSegmentSizes(
    c10::DeviceIndex /*device*/) {
  return {};  // there are none
}

void Adapter::attachOutOfMemoryObserver(torch_cuda::OutOfMemoryObserver observer) {
  add_out_of_memory_observer(std::move(observer));
}

namespace {
std::string& thread_metadata() {
  static thread_local std::string metadata;
  return metadata;
}
}  // namespace

void Adapter::setUserMetadata(const std::string& metadata) {
  thread_metadata() = metadata;
}

std::string Adapter::getUserMetadata() {
  return thread_metadata();
}

}  // namespace limbo
