// The program's actions that change how the allocator works, or look at it.
#pragma once

#include "tests/fuzz/allocator_world.h"

namespace limbo::fuzz::allocator {

// ---- the rest -------------------------------------------------------------------------------

// Another thread, which ends: its cache goes to the others.
inline void World::elsewhere(Input& input) {
  const bool frees_ours = input.below(3) == 0;
  Owned* const ours = model_.pick_allocated(input.number());
  const StreamRef stream = model_.lines[pick_line(input)].ref;
  std::string broken;
  const auto work = [&] {
    std::vector<void*> made;
    try {
      if (frees_ours) free_own(ours);
      for (const std::size_t size : {600U, 5'000U, 5'000U, 70'000U}) {
        made.push_back(allocator_->allocate(size, stream));
      }
    } catch (const OutOfMemory&) {  // as good
    } catch (const Error& failure) {
      if (!faults_ || failure.code() != ErrorCode::kDeviceError) broken = failure.what();
    } catch (const std::exception& failure) {
      broken = failure.what();
    }
    for (void* data : made) allocator_->free(data);
  };
  patiently([&] { std::thread(work).join(); });
  require(broken.empty(), "another thread: " + broken);
}

inline void World::make_room(Input& input) {
  const int device = static_cast<int>(input.below(kDevices + 1)) - 1;
  std::vector<std::int64_t> before;
  for (int each = 0; each < kDevices; ++each) {
    before.push_back(allocator_->stats(each).reserved_bytes[kAll].current);
  }
  try {
    patiently([&] { allocator_->empty_cache(device); });
  } catch (const Error& error) {
    require(faults_ && error.code() == ErrorCode::kDeviceError,
            std::string("empty_cache fails for no reason: ") + error.what());
  }
  for (int each = 0; each < kDevices; ++each) {
    require(!routed(each) || allocator_->stats(each).reserved_bytes[kAll].current ==
                                 before[static_cast<std::size_t>(each)],
            "nothing is returned while allocations go to a pool");
  }
}

inline void World::change_policy(Input& input) {
  switch (input.below(4)) {
    case 0: {
      AllocationPolicy policy;
      constexpr std::size_t kSplits[] = {~std::size_t{0}, 21 * kMiB, 40 * kMiB};
      policy.max_split_size_bytes = kSplits[input.below(std::size(kSplits))];
      policy.max_non_split_rounding_bytes = (20 + 10 * input.below(3)) * kMiB;
      policy.garbage_collection_threshold = 0.25 * static_cast<double>(input.below(4));
      allocator_->set_policy(policy);
      return;
    }
    case 1:
      allocator_->set_limit_bytes(static_cast<int>(input.below(kDevices)),
                                  input.below(8) * 24 * kMiB);
      return;
    case 2:
      lender_.refused = input.below(4);
      return;
    default:
      spare_ = model_.pick_allocated(input.number());
  }
}

inline void World::plan_fault(Input& input) {
  constexpr CallKind kKinds[] = {CallKind::kAllocate, CallKind::kAllocate, CallKind::kFree,
                                 CallKind::kRecordEvent};
  const std::size_t kind = input.below(std::size(kKinds));
  Fault fault;
  fault.kind = kKinds[kind];
  fault.nth = 1 + input.below(3);
  fault.action = kind == 0 ? Fault::Action::kFull : Fault::Action::kFail;
  device_.faults().add(fault);
  faults_ = faults_ || kind != 0;
}

inline void World::history(Input& input) {
  HistorySettings settings;
  settings.enabled = input.below(3) != 0;
  settings.max_entries = 1 + input.below(32);
  settings.contexts = static_cast<ContextLevel>(input.below(4));
  settings.gather = [] { return CallContext(std::make_shared<int>(1)); };
  settings.clear = input.below(4) == 0;
  settings.skipped = std::bitset<kTraceActions>(input.number());
  allocator_->set_history(settings);
  require(allocator_->history_enabled() == settings.enabled, "the history is as it was set");
  if (!settings.enabled) return;
  const MemorySnapshot snapshot = allocator_->snapshot_with_traces();
  for (const auto& entries : snapshot.traces) {
    require(entries.size() <= settings.max_entries, "the history is as long as it may be");
    require(std::is_sorted(entries.begin(), entries.end(),
                           [](const TraceEntry& one, const TraceEntry& other) {
                             return one.time < other.time;
                           }),
            "the history is in order");
  }
}

inline void World::look(Input& input) {
  switch (input.below(4)) {
    case 0:
      (void)allocator_->snapshot();
      return;
    case 1:
      allocator_->reset_peak_stats(static_cast<int>(input.below(kDevices)));
      return;
    case 2:
      allocator_->reset_accumulated_stats(static_cast<int>(input.below(kDevices)));
      return;
    default:
      if (const Owned* owned = model_.pick_allocated(input.number())) {
        const auto view =
            allocator_->find(owned->data + input.number<std::uint32_t>() % owned->size_bytes);
        require(view && view->data == owned->data, "what is allocated is found from inside");
      }
  }
}

}  // namespace limbo::fuzz::allocator
