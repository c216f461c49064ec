// Private pools and the routes into them.
#include "allocator/pools.h"

#include <algorithm>
#include <string>

#include "allocator/address_text.h"
#include "allocator/allocator_impl.h"
#include "allocator/error.h"
#include "allocator/inside.h"

namespace limbo {
namespace {

std::string name_of(int device, PoolId id) {
  return "pool (" + std::to_string(id.first) + ", " + std::to_string(id.second) + ") on device " +
         std::to_string(device);
}

void require_private(PoolId id) {
  if (!id.is_default()) return;
  throw Error(ErrorCode::kBadArgument, "(0, 0) names the default pool, which is no private one.",
              "Use the id of a private pool.");
}

// The routes that stand at its beginning, whose filters this thread may ask until its end.
class AskedRoutes {
 public:
  explicit AskedRoutes(DeviceHeap& at) : at_(at) {
    const std::lock_guard lock(at_.mutex);
    routes_ = at_.routes;
    asked_.reserve(routes_->size());
    for (const Route& route : *routes_) asked_.push_back(route.asked);
    for (const auto& asked : asked_) ++*asked;
  }
  ~AskedRoutes() {
    routes_.reset();  // this thread's part of the filters, too, is over when their route is
    {
      const std::lock_guard lock(at_.mutex);
      for (const auto& asked : asked_) --*asked;
    }
    at_.filters_asked.notify_all();
  }
  AskedRoutes(const AskedRoutes&) = delete;
  AskedRoutes& operator=(const AskedRoutes&) = delete;

  [[nodiscard]] const Routes& routes() const noexcept { return *routes_; }

 private:
  DeviceHeap& at_;
  std::shared_ptr<const Routes> routes_;
  std::vector<std::shared_ptr<int>> asked_;
};

// A thread inside the provider of a private pool, which may be anybody's code.
using InsideMaker = Inside<Pool>;

bool still_stands(DeviceHeap& at, const Route& route) {
  const std::lock_guard lock(at.mutex);
  return std::any_of(at.routes->begin(), at.routes->end(),
                     [&](const Route& standing) { return standing.asked == route.asked; });
}

}  // namespace

// ---- the heap's part ------------------------------------------------------------------------

std::shared_ptr<Pool> DeviceHeap::find_pool(PoolId id) const {
  const auto found = pools.find(id);
  return found == pools.end() ? nullptr : found->second;
}

std::shared_ptr<Pool> DeviceHeap::use_pool(PoolId id, const std::shared_ptr<Provider>& provider) {
  std::shared_ptr<Pool> pool = find_pool(id);
  if (pool == nullptr) {
    pool = std::make_shared<Pool>(id, provider);
    pools.emplace(id, pool);
  } else if (provider != nullptr && provider != pool->provider) {
    throw Error(ErrorCode::kBadArgument, "There is a " + name_of(device, id) + " already.",
                "What makes a pool's memory is said when the pool is made.");
  }
  ++pool->uses;
  pool->wants_return = false;
  return pool;
}

void DeviceHeap::forget_if_over(const Pool& pool) noexcept {
  if (pool.uses != 0 || pool.segments != 0) return;
  const auto known = pools.find(pool.id);
  if (known != pools.end() && known->second.get() == &pool) pools.erase(known);
}

Block* DeviceHeap::find_fit_in_need(StreamHandle stream, std::size_t size_bytes) {
  for (const auto& [id, pool] : pools) {
    if (!pool->use_on_oom || pool->uses == 0) continue;
    if (Block* block = find_fit(*pool, stream, size_bytes)) return block;
  }
  return nullptr;
}

// ---- routes ---------------------------------------------------------------------------------

std::shared_ptr<Pool> Allocator::Impl::routed_pool(DeviceHeap& at, StreamRef stream) {
  if (!at.routed()) return nullptr;
  const AskedRoutes asked(at);
  for (auto route = asked.routes().rbegin(); route != asked.routes().rend(); ++route) {
    if (InsideMaker::times(*route->pool) != 0) continue;
    if (route->filter(stream.handle) && still_stands(at, *route)) return route->pool;
  }
  return nullptr;
}

void* Allocator::Impl::make_piece(DeviceHeap& at, const Pool& pool, std::size_t size_bytes) {
  if (pool.provider == nullptr) return provider.make_piece(at.device, size_bytes);
  const InsideMaker inside(pool);
  void* base = pool.provider->make_piece(at.device, size_bytes);
  if (base == nullptr || !page_table.overlaps(base, size_bytes)) return base;
  try {
    pool.provider->return_piece(at.device, base, size_bytes);
  } catch (...) {  // what is told is why it goes back
  }
  throw Error(ErrorCode::kBadArgument,
              "The allocator of the " + name_of(at.device, pool.id) + " gave " +
                  std::to_string(size_bytes) + " bytes at " + address_text(base) +
                  ", which is memory of Limbo's already.",
              "A pool whose memory is to be Limbo's is made without an allocator.");
}

bool Allocator::Impl::capturing(DeviceHeap& at) noexcept {
  if (!at.routed()) return false;
  try {
    std::vector<StreamHandle> asked;  // not the routes: their filters must go when they end
    {
      const std::lock_guard lock(at.mutex);
      asked.reserve(at.routes->size());
      for (const Route& route : *at.routes) {
        if (!route.captured) return true;
        asked.push_back(*route.captured);
      }
    }
    return std::any_of(asked.begin(), asked.end(), [&](StreamHandle stream) {
      return device.is_capturing({at.device, stream});
    });
  } catch (...) {  // it cannot be told
    return true;
  }
}

bool Allocator::Impl::in_capture(DeviceHeap& at, const Request& request) {
  return capturing(at) || device.is_capturing(request.stream);
}

std::shared_ptr<Pool> Allocator::Impl::known_pool(DeviceHeap& at, PoolId id) {
  require_private(id);
  if (std::shared_ptr<Pool> pool = at.find_pool(id)) return pool;
  throw Error(ErrorCode::kBadArgument, "There is no " + name_of(at.device, id) + ".",
              "Make it first; one that was released is gone when its last memory is.");
}

void Allocator::Impl::shrink(DeviceHeap& at, const Pool& pool) {
  const TraceCall call(at.trace, ContextLevel::kAll);
  wait_for_events(at, &pool);
  static_cast<void>(return_pieces(at, &pool));
}

void Allocator::begin_allocate_to_pool(int device, PoolId id,
                                       std::function<bool(StreamHandle)> filter,
                                       std::optional<StreamHandle> captured) {
  DeviceHeap& at = impl_->heap(device);
  require_private(id);
  if (filter == nullptr) {
    throw Error(ErrorCode::kBadArgument, "A route without a filter.",
                "Say which streams' allocations go to the pool.");
  }
  impl_->bypass_caches(at);
  try {
    std::shared_ptr<const Routes> old;  // destroyed behind the lock
    const std::lock_guard lock(at.mutex);
    old = at.routes;
    for (const Route& route : *old) {
      if (route.pool->id != id) continue;
      throw Error(ErrorCode::kBadArgument,
                  "Allocations go to the " + name_of(device, id) + " already.",
                  "End that first, or use another pool.");
    }
    auto routes = std::make_shared<Routes>(*old);
    Route& route = routes->emplace_back();
    route.filter = std::move(filter);
    route.captured = captured;
    route.pool = at.use_pool(id, nullptr);
    at.set_routes(std::move(routes));
  } catch (...) {
    Impl::allow_caches(at);
    throw;
  }
}

void Allocator::end_allocate_to_pool(int device, PoolId id) {
  DeviceHeap& at = impl_->heap(device);
  std::shared_ptr<const Routes> old;  // destroyed behind the lock: filters may call out
  std::vector<std::shared_ptr<Pool>> shrinking;
  std::shared_ptr<int> asked;  // of the route
  {
    const std::lock_guard lock(at.mutex);
    old = at.routes;
    auto routes = std::make_shared<Routes>(*old);
    const auto ended = std::find_if(routes->begin(), routes->end(),
                                    [&](const Route& route) { return route.pool->id == id; });
    if (ended == routes->end()) {
      throw Error(ErrorCode::kBadArgument, "No allocations go to the " + name_of(device, id) + ".",
                  "Begin that first.");
    }
    shrinking.reserve(at.pools.size());
    asked = ended->asked;
    routes->erase(ended);
    for (const auto& [pool_id, pool] : at.pools) {
      if (pool->wants_return) shrinking.push_back(pool);
    }
    at.set_routes(std::move(routes));
  }
  Impl::allow_caches(at);
  {
    std::unique_lock lock(at.mutex);
    at.filters_asked.wait(lock, [&] { return *asked == 0; });
  }
  if (shrinking.empty() || impl_->capturing(at)) return;
  for (const auto& pool : shrinking) {
    {
      const std::lock_guard lock(at.mutex);
      if (!std::exchange(pool->wants_return, false)) continue;  // others did, or it is used again
    }
    try {
      impl_->shrink(at, *pool);
    } catch (...) {  // no fault of this route's end: the next one, or empty_cache, tries again
      const std::lock_guard lock(at.mutex);
      if (pool->uses == 0) pool->wants_return = true;
    }
  }
}

// ---- pools ----------------------------------------------------------------------------------

// The pool keeps the provider. NOLINTNEXTLINE(performance-unnecessary-value-param)
void Allocator::retain_pool(int device, PoolId id, std::shared_ptr<Provider> provider) {
  DeviceHeap& at = impl_->heap(device);
  require_private(id);
  const std::lock_guard lock(at.mutex);
  static_cast<void>(at.use_pool(id, provider));
}

void Allocator::release_pool(int device, PoolId id) {
  DeviceHeap& at = impl_->heap(device);
  std::shared_ptr<Pool> pool;  // outlives the lock
  const std::lock_guard lock(at.mutex);
  pool = Impl::known_pool(at, id);
  if (pool->uses == 0) {
    throw Error(ErrorCode::kBadArgument, "The " + name_of(device, id) + " has no use left.",
                "It was released as often as it was made and begun.");
  }
  --pool->uses;
  at.forget_if_over(*pool);
}

int Allocator::pool_use_count(int device, PoolId id) const {
  const DeviceHeap& at = impl_->heap(device);
  const std::lock_guard lock(at.mutex);
  const std::shared_ptr<Pool> pool = at.find_pool(id);
  return pool == nullptr ? 0 : pool->uses;
}

void Allocator::set_use_on_oom(int device, PoolId id, bool use) {
  DeviceHeap& at = impl_->heap(device);
  const std::lock_guard lock(at.mutex);
  Impl::known_pool(at, id)->use_on_oom = use;
}

void Allocator::set_no_split(int device, PoolId id) {
  DeviceHeap& at = impl_->heap(device);
  const std::lock_guard lock(at.mutex);
  Impl::known_pool(at, id)->no_split = true;
}

std::vector<void*> Allocator::pool_live_allocations(int device, PoolId id) {
  DeviceHeap& at = impl_->heap(device);
  const std::lock_guard lock(at.mutex);
  const std::shared_ptr<Pool> pool = Impl::known_pool(at, id);
  std::vector<void*> live;
  for (const auto& [piece_id, segment] : at.segments) {
    if (segment->pool != pool) continue;
    for (const Block* block = segment->first; block != nullptr; block = block->next) {
      if (block->state() == BlockState::kAllocated) live.push_back(block->data());
    }
  }
  return live;
}

void Allocator::empty_cache(int device, PoolId id) {
  DeviceHeap& at = impl_->heap(device);
  const bool later = impl_->capturing(at);
  std::shared_ptr<Pool> pool;
  {
    const std::lock_guard lock(at.mutex);
    pool = at.find_pool(id);
    if (pool == nullptr || pool->uses != 0) return;
    if (later && at.routed()) {
      pool->wants_return = true;
      return;
    }
  }
  impl_->shrink(at, *pool);
}

}  // namespace limbo
