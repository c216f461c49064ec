// The program's private pools: uses, routes, memory of another provider.
#pragma once

#include "allocator/provider.h"
#include "tests/fuzz/allocator_world.h"

namespace limbo::fuzz::allocator {

// Another maker of memory, which knows what it has made.
class CountingProvider : public Provider {
 public:
  explicit CountingProvider(SimDevice& device) : device_(device) {}

  void* make_piece(int device, std::size_t size_bytes) override {
    void* const base = device_.try_allocate(device, size_bytes);
    if (base != nullptr) pieces_[base] = size_bytes;
    return base;
  }
  void return_piece(int device, void* base, std::size_t size_bytes) override {
    const auto made = pieces_.find(base);
    require(made != pieces_.end() && made->second == size_bytes,
            "a provider gets back what it has made");
    device_.free(device, base);
    pieces_.erase(made);
  }
  [[nodiscard]] bool holds(const std::byte* data) const {
    return std::any_of(pieces_.begin(), pieces_.end(), [&](const auto& piece) {
      const auto* const base = static_cast<const std::byte*>(piece.first);
      return base <= data && data < base + piece.second;
    });
  }
  [[nodiscard]] bool empty() const noexcept { return pieces_.empty(); }

 private:
  SimDevice& device_;
  std::map<void*, std::size_t> pieces_;
};

// Whether the allocator knows the pool: it is used, or still has memory.
inline bool World::exists(const PlayedPool& pool) {
  return pool.uses > 0 || !allocator_->snapshot(pool.device, pool.id).empty();
}

inline PoolId World::expected_pool(StreamRef stream) const {
  for (auto route = routes_.rbegin(); route != routes_.rend(); ++route) {
    const PlayedPool& pool = pools_[*route];
    if (pool.device != stream.device) continue;
    if (!pool.filter || *pool.filter == stream.handle) return pool.id;
  }
  return {};
}

inline bool World::routed(int device) const {
  return std::any_of(routes_.begin(), routes_.end(),
                     [&](std::size_t route) { return pools_[route].device == device; });
}

// Which pool the new block came from; it has to be the right one.
inline PoolId World::pool_of(const Owned& owned) {
  const PoolId expected = expected_pool(owned.home);
  PoolId found;
  bool in_need = false;
  for (const PlayedPool& pool : pools_) {
    if (pool.device != owned.home.device || !exists(pool)) continue;
    in_need = in_need || pool.use_on_oom;
    const auto live = allocator_->pool_live_allocations(pool.device, pool.id);
    if (std::find(live.begin(), live.end(), owned.data) == live.end()) continue;
    require(found.is_default(), "a block belongs to one pool");
    found = pool.id;
    require(!pool.provider || pool.provider->holds(owned.data), "its provider made its memory");
  }
  require(found == expected || (expected.is_default() && in_need),
          "an allocation goes to the pool that it is routed to");
  return found;
}

// What must fail, for a pool that does not exist or is not used as it should be.
template <typename Call>
void World::refuses(Call call, const char* rule) {
  try {
    call();
  } catch (const Error& error) {
    require(error.code() == ErrorCode::kBadArgument, rule);
    return;
  }
  require(false, rule);
}

inline void World::use_pool(Input& input) {
  const std::size_t which = input.below(pools_.size());
  PlayedPool& pool = pools_[which];
  const int device = pool.device;
  const bool known = exists(pool);
  switch (input.below(8)) {
    case 0: {
      if (!known && which % 2 == 1) {
        pool.provider = std::make_shared<CountingProvider>(device_);
        providers_.push_back(pool.provider);
      } else if (!known) {
        pool.provider.reset();
      }
      if (!known) pool.use_on_oom = false;
      allocator_->retain_pool(device, pool.id, known ? nullptr : pool.provider);
      ++pool.uses;
      return;
    }
    case 1:
      if (pool.uses == 0) {
        return refuses([&] { allocator_->release_pool(device, pool.id); }, "a use is ended once");
      }
      if (pool.routed && pool.uses == 1) return;  // the route's own
      allocator_->release_pool(device, pool.id);
      --pool.uses;
      return;
    case 2:
    case 3:
      if (pool.routed) {
        return refuses([&] { allocator_->begin_allocate_to_pool(device, pool.id, everything()); },
                       "allocations go to a pool once");
      }
      if (!known) {
        pool.provider.reset();
        pool.use_on_oom = false;
      }
      pool.filter.reset();
      if (input.below(2) == 0) pool.filter = model_.lines[pick_line(input)].ref.handle;
      allocator_->begin_allocate_to_pool(
          device, pool.id,
          [filter = pool.filter](StreamHandle stream) { return !filter || *filter == stream; });
      ++pool.uses;
      pool.routed = true;
      routes_.push_back(which);
      return;
    case 4:
      return end_route(which);
    case 5:
      if (!known) {
        return refuses([&] { allocator_->set_use_on_oom(device, pool.id, true); },
                       "there is no such pool");
      }
      pool.use_on_oom = input.below(2) == 0;
      return allocator_->set_use_on_oom(device, pool.id, pool.use_on_oom);
    case 6:
      if (!known) {
        return refuses([&] { allocator_->set_no_split(device, pool.id); }, "there is no such pool");
      }
      return allocator_->set_no_split(device, pool.id);
    default:
      return patiently([&] {
        try {
          allocator_->empty_cache(device, pool.id);
        } catch (const Error& error) {
          require(faults_ && error.code() == ErrorCode::kDeviceError,
                  std::string("empty_cache of a pool fails for no reason: ") + error.what());
        }
      });
  }
}

inline std::function<bool(StreamHandle)> World::everything() {
  return [](StreamHandle) { return true; };
}

inline void World::end_route(std::size_t which) {
  PlayedPool& pool = pools_[which];
  if (!pool.routed) {
    return refuses([&] { allocator_->end_allocate_to_pool(pool.device, pool.id); },
                   "what was not begun is not ended");
  }
  pool.routed = false;
  routes_.erase(std::find(routes_.begin(), routes_.end(), which));
  patiently([&] {
    try {
      allocator_->end_allocate_to_pool(pool.device, pool.id);
    } catch (const Error& error) {  // of memory that was to be returned meanwhile
      require(faults_ && error.code() == ErrorCode::kDeviceError,
              std::string("the end of a route fails for no reason: ") + error.what());
    }
  });
  if (pool.uses == 0) return;
  allocator_->release_pool(pool.device, pool.id);
  --pool.uses;
}

inline void World::check_pools() {
  for (const PlayedPool& pool : pools_) {
    require(allocator_->pool_use_count(pool.device, pool.id) == pool.uses,
            "a pool is used as often as it was said");
    if (!exists(pool)) continue;
    std::vector<void*> expected;
    for (const auto& [data, owned] : model_.blocks()) {
      if (owned.allocated && owned.home.device == pool.device && owned.pool == pool.id) {
        expected.push_back(data);
      }
    }
    auto live = allocator_->pool_live_allocations(pool.device, pool.id);
    std::sort(live.begin(), live.end());
    require(live == expected, "a pool's blocks are those that were allocated from it");
  }
}

inline void World::end_pools() {
  while (!routes_.empty()) end_route(routes_.back());
  for (PlayedPool& pool : pools_) {
    for (; pool.uses > 0; --pool.uses) allocator_->release_pool(pool.device, pool.id);
  }
}

}  // namespace limbo::fuzz::allocator
