// The program goes back to earlier states of its pools.
#pragma once

#include "tests/fuzz/allocator_pools.h"

namespace limbo::fuzz::allocator {

// Their blocks are nobody's, as after a free, whatever is in them.
inline std::vector<void*> World::forget_pool(const PlayedPool& pool) {
  std::vector<void*> gone;
  auto& blocks = model_.blocks();
  for (auto each = blocks.begin(); each != blocks.end();) {
    const Owned& owned = each->second;
    if (!owned.allocated || owned.home.device != pool.device || owned.pool != pool.id) {
      ++each;
      continue;
    }
    if (&owned == spare_) spare_ = nullptr;
    gone.push_back(owned.data);
    each = blocks.erase(each);
  }
  return gone;
}

inline void World::take_checkpoint(std::size_t which) {
  const PlayedPool& pool = pools_[which];
  if (pool.uses == 0) {
    return refuses([&] { (void)allocator_->take_checkpoint(pool.device, pool.id); },
                   "a pool that nobody uses has no checkpoints");
  }
  if (taken_.size() >= 4) taken_.erase(taken_.begin());
  TakenCheckpoint taken{which, allocator_->take_checkpoint(pool.device, pool.id), {}};
  for (const auto& [data, owned] : model_.blocks()) {
    if (!owned.allocated || owned.home.device != pool.device || owned.pool != pool.id) continue;
    Owned again;
    again.data = owned.data;
    again.size_bytes = owned.size_bytes;
    again.asked_bytes = owned.asked_bytes;
    again.home = owned.home;
    again.pool = owned.pool;
    taken.allocated.push_back(again);
  }
  taken_.push_back(std::move(taken));
}

inline void World::restore_checkpoint(const TakenCheckpoint& taken) {
  const PlayedPool& pool = pools_[taken.pool];
  // Blocks that other streams use, or may still use, are a reason to refuse.
  bool used_elsewhere = false;
  for (const auto& [data, owned] : model_.blocks()) {
    used_elsewhere = used_elsewhere || (owned.home.device == pool.device && owned.pool == pool.id &&
                                        owned.allocated && !owned.users.empty());
  }
  const auto before = allocator_->snapshot(pool.device, pool.id);
  CheckpointDelta delta;
  try {
    delta = allocator_->restore_checkpoint(*taken.checkpoint);
  } catch (const Error& refused) {
    require(refused.code() == ErrorCode::kBadArgument || faults_, "going back is refused with why");
    const auto after = allocator_->snapshot(pool.device, pool.id);
    require(before.size() == after.size(), "what is refused has changed nothing");
    return;
  }
  require(pool.uses > 0 && !used_elsewhere, "going back over memory in use is refused");
  std::sort(delta.freed.begin(), delta.freed.end());
  require(delta.freed == forget_pool(pool), "all of the pool's blocks are freed");
  std::vector<void*> expected;
  for (const Owned& owned : taken.allocated) expected.push_back(owned.data);
  std::sort(delta.allocated.begin(), delta.allocated.end());
  require(delta.allocated == expected, "what was allocated then is again");
  for (const Owned& owned : taken.allocated) {
    const std::optional<BlockView> view = allocator_->find(owned.data);
    require(view && view->size_bytes == owned.size_bytes &&
                view->requested_bytes == owned.asked_bytes && view->stream == owned.home,
            "a block that comes back is as it was");
    model_.begin(owned);
  }
}

inline void World::go_back(Input& input) {
  if (input.below(2) == 0) return take_checkpoint(input.below(pools_.size()));
  const std::size_t which = input.number();
  if (!taken_.empty()) restore_checkpoint(taken_[which % taken_.size()]);
}

}  // namespace limbo::fuzz::allocator
