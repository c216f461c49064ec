// Pools: what keeps the memory of some allocations apart from the rest.
//
// Every segment belongs to one pool, for good, and so does every block: it is cut from the pool's
// segments, and returns to the pool's free lists. The default pool is the memory of everybody else;
// private pools are those of CUDA graphs and of torch.cuda.MemPool. Their blocks are in no thread's
// cache and not in the depot.
#pragma once

#include <memory>

#include "allocator/free_list.h"
#include "allocator/pool_id.h"
#include "allocator/provider.h"

namespace limbo {

// One device's part of a pool. Guarded by the heap lock, but for what is constant.
struct Pool {
  explicit Pool(PoolId pool_id, std::shared_ptr<Provider> made_by = nullptr)
      : id(pool_id), provider(std::move(made_by)) {}
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  const PoolId id;
  // What makes its segments; null: the allocator's own. Its end may call out, so the last owner of
  // a pool lets go of it with no lock held.
  const std::shared_ptr<Provider> provider;

  FreeList small;
  FreeList large;

  [[nodiscard]] bool is_default() const noexcept { return id.is_default(); }
  [[nodiscard]] FreeList& list(bool is_large) noexcept { return is_large ? large : small; }
  [[nodiscard]] const FreeList& list(bool is_large) const noexcept {
    return is_large ? large : small;
  }
};

}  // namespace limbo
