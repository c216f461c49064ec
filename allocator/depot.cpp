#include "allocator/depot.h"

namespace limbo {

void StreamDepot::put(std::size_t size_class, const Chain& chain) {
  Bin& bin = bins_[size_class];
  const std::lock_guard lock(bin.mutex);
  bin.chains.push_back(chain);
  chain_count_.fetch_add(1, std::memory_order_relaxed);
}

Chain StreamDepot::take(std::size_t size_class) noexcept {
  if (chain_count_.load(std::memory_order_relaxed) == 0) return {};
  Bin& bin = bins_[size_class];
  const std::lock_guard lock(bin.mutex);
  if (bin.chains.empty()) return {};
  const Chain chain = bin.chains.back();
  bin.chains.pop_back();
  chain_count_.fetch_sub(1, std::memory_order_relaxed);
  return chain;
}

void StreamDepot::take_all(ChainList& chains) noexcept {
  if (chain_count_.load(std::memory_order_relaxed) == 0) return;
  for (Bin& bin : bins_) {
    const std::lock_guard lock(bin.mutex);
    for (const Chain& chain : bin.chains) chains.push(chain);
    chain_count_.fetch_sub(bin.chains.size(), std::memory_order_relaxed);
    bin.chains.clear();
  }
}

}  // namespace limbo
