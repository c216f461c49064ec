// Pools: what keeps the memory of some allocations apart from the rest.
//
// Every segment belongs to one pool, for good, and so does every block: it is cut from the pool's
// segments, and returns to the pool's free lists. The default pool is the memory of everybody else;
// private pools are those of CUDA graphs and of torch.cuda.MemPool. Their blocks are in no thread's
// cache and not in the depot.
//
// A pool lives as long as anything holds it: the heap's table of pools while it is used or has
// segments, its segments, a route, an allocation that is under way.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "allocator/free_list.h"
#include "allocator/pool_id.h"
#include "allocator/provider.h"
#include "allocator/small_free_list.h"

namespace limbo {

// One device's part of a pool. Guarded by the heap lock, but for what is constant.
struct Pool : std::enable_shared_from_this<Pool> {
  explicit Pool(PoolId pool_id, std::shared_ptr<Provider> made_by = nullptr)
      : id(pool_id), provider(std::move(made_by)) {}
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  const PoolId id;
  // What makes its segments; null: the allocator's own. Its end may call out, so the last owner of
  // a pool lets go of it with no lock held.
  const std::shared_ptr<Provider> provider;

  SmallFreeList small;
  FreeList large;
  std::size_t segments = 0;  // that it has

  // Private pools only.
  int uses = 0;  // 0: nobody will allocate from it again, and its free segments may be returned
  bool use_on_oom = false;    // serves requests of the default pool before memory is given back
  bool no_split = false;      // every block is a segment
  bool wants_return = false;  // empty_cache came while nothing could be returned

  [[nodiscard]] bool is_default() const noexcept { return id.is_default(); }
  // Whether its unused segments may go back to their provider.
  [[nodiscard]] bool may_shrink() const noexcept { return is_default() || uses == 0; }
  // In the list of its kind.
  [[nodiscard]] bool lists(const Block* block) const {
    return block->segment->large ? large.contains(block) : small.contains(block);
  }
};

// While it stands, allocations on the streams that `filter` accepts are served from `pool`. The
// filter is asked in the allocating thread, with no lock held: it may look at the thread, or ask
// the driver what the stream captures. The end of the route waits for threads that ask it, so what the
// filter refers to may go afterwards; the filter must not end its own route, nor wait for who does.
struct Route {
  std::shared_ptr<Pool> pool;
  std::function<bool(StreamHandle)> filter;
  std::optional<StreamHandle> captured;  // see Impl::capturing
  // Threads that may be inside the filter; none comes anew once the route has ended. Guarded by the
  // heap lock.
  std::shared_ptr<int> asked = std::make_shared<int>(0);
};
using Routes = std::vector<Route>;  // oldest first; the youngest that accepts a stream has it

}  // namespace limbo
