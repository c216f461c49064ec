// History, trackers, notes of threads, snapshots.
#include <c10/core/AllocatorConfig.h>
#include <c10/cuda/CUDAAllocatorConfig.h>
#include <c10/util/Exception.h>

#include <bit>
#include <utility>

#include "hooks/adapter.h"
#include "hooks/current_stream.h"
#include "hooks/error_text.h"
#include "hooks/history.h"
#include "hooks/out_of_memory.h"
#include "hooks/process.h"

namespace limbo {

namespace torch_cuda = c10::cuda::CUDACachingAllocator;

namespace {

c10::CachingDeviceAllocator::SegmentInfo to_torch_segment(const SegmentView& segment) {
  c10::CachingDeviceAllocator::SegmentInfo result;
  result.device = static_cast<c10::DeviceIndex>(segment.stream.device);
  result.registration_counter = segment.registration_counter;
  result.address = std::bit_cast<std::size_t>(segment.base);
  result.total_size = segment.size_bytes;
  result.requested_size = segment.requested_bytes;
  result.allocated_size = segment.allocated_bytes;
  result.active_size = segment.active_bytes;
  result.stream = segment.stream.handle;
  result.is_large = segment.large;
  result.owner_private_pool_id = to_torch(segment.pool);
  result.context_when_allocated = to_torch(segment.context);
  result.blocks.reserve(segment.blocks.size());
  for (const SegmentView::BlockState& block : segment.blocks) {
    c10::CachingDeviceAllocator::BlockInfo info;
    info.size = block.size_bytes;
    info.requested_size = block.requested_bytes;
    info.allocated = block.allocated;
    info.active = block.active;
    info.context_when_allocated = to_torch(block.context);
    result.blocks.push_back(std::move(info));
  }
  return result;
}

torch_cuda::AllocatorConfigInfo settings_in_use() {
  using c10::CachingAllocator::AcceleratorAllocatorConfig;
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

Annotations& annotations() {
  static auto* made = new Annotations;
  return *made;
}

}  // namespace

// ---- history ------------------------------------------------------------------------------------

bool Adapter::isHistoryEnabled() {
  return in_use() && !in_forked_child() && allocator_in_use().history_enabled();
}

void Adapter::recordHistory(bool enabled, torch_cuda::CreateContextFn context_recorder,
                            std::size_t max_entries, torch_cuda::RecordContext when,
                            bool clear_history, const std::vector<std::string>& skip_actions) {
  const HistorySettings settings = to_history_settings(enabled, context_recorder, max_entries, when,
                                                       clear_history, skip_actions);
  // Nothing is recorded before the first use: there is nothing to switch off.
  if (!enabled && !in_use()) return;
  annotations().set(settings);
  for_torch([&] { allocator_in_use().set_history(settings); });
}

void Adapter::recordAnnotation(const std::vector<std::pair<std::string, std::string>>& notes) {
  if (!isHistoryEnabled()) return;
  Annotations::Entry entry(static_cast<c10::DeviceIndex>(for_torch(current_device)),
                           c10::getApproximateTime());
  for (const auto& [name, value] : notes) entry.recordUserMetadata(name, value);
  annotations().add(std::move(entry));
}

// Kept whether or not history is recorded at the moment, so that every pop meets its push.
void Adapter::pushCompileContext(std::string& context) {
  if (ThreadNotes* notes = thread_notes()) notes->compile_contexts.push_back(context);
}

void Adapter::popCompileContext() {
  ThreadNotes* notes = thread_notes();
  if (notes != nullptr && !notes->compile_contexts.empty()) notes->compile_contexts.pop_back();
}

void Adapter::setUserMetadata(const std::string& metadata) {
  if (ThreadNotes* notes = thread_notes()) notes->user_metadata = metadata;
}

std::string Adapter::getUserMetadata() {
  const ThreadNotes* notes = thread_notes();
  return notes == nullptr ? std::string() : notes->user_metadata;
}

// ---- who listens --------------------------------------------------------------------------------

void Adapter::attachAllocatorTraceTracker(torch_cuda::AllocatorTraceTracker tracker) {
  TORCH_CHECK(tracker != nullptr, "An allocator trace tracker was attached that is no function.");
  for_torch([&] { attach_tracker(std::move(tracker)); });
}

void Adapter::attachOutOfMemoryObserver(torch_cuda::OutOfMemoryObserver observer) {
  TORCH_CHECK(observer != nullptr, "An out-of-memory observer was attached that is no function.");
  add_out_of_memory_observer(std::move(observer));
}

// ---- snapshots ----------------------------------------------------------------------------------

torch_cuda::SnapshotInfo Adapter::snapshot(c10::MempoolId_t pool, bool include_traces) {
  torch_cuda::SnapshotInfo result;
  result.config_metadata = settings_in_use();
  const PoolId pool_id{pool.first, pool.second};
  MemorySnapshot seen = for_torch([&] {
    return include_traces ? allocator_in_use().snapshot_with_traces(pool_id)
                          : MemorySnapshot{allocator_in_use().snapshot(-1, pool_id), {}};
  });
  result.segments.reserve(seen.segments.size());
  for (const SegmentView& segment : seen.segments) {
    result.segments.push_back(to_torch_segment(segment));
  }
  if (!include_traces) return result;
  const auto microseconds = make_clock_converter();
  for (const std::vector<TraceEntry>& trace : seen.traces) {
    auto& entries = result.device_traces.emplace_back();
    entries.reserve(trace.size());
    for (const TraceEntry& entry : trace) {
      entries.push_back(to_torch(entry));
      auto& time = entries.back().time_;
      time.t_ = microseconds(time.approx_t_);
    }
  }
  result.external_annotations = annotations().entries();
  for (auto& annotation : result.external_annotations) {
    annotation.time_.t_ = microseconds(annotation.time_.approx_t_);
  }
  return result;
}

}  // namespace limbo
