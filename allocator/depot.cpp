#include "allocator/depot.h"

#include <sched.h>

#include <bit>

namespace limbo {

StreamDepot::Locked::Locked(Bin& bin) noexcept : bin_(bin) {
  constexpr unsigned kSpins = 200;  // then its holder is probably not running
  for (unsigned spins = 0; bin.locked.exchange(true, std::memory_order_acquire);) {
    while (bin.locked.load(std::memory_order_relaxed)) {
      if (++spins > kSpins) sched_yield();
    }
  }
}

bool StreamDepot::put(std::size_t size_class, const Chain& chain) noexcept {
  if (!room_.try_hold(chain.count * class_size(size_class))) return false;
  std::atomic<std::uint64_t>& used = used_[size_class / 64];
  const std::uint64_t bit = std::uint64_t{1} << (size_class % 64);
  Bin& bin = bins_[size_class];
  chain.head->chain_count = static_cast<std::uint16_t>(chain.count);  // on the line of next_chain
  const Locked locked(bin);
  // Under the lock: take_all, which takes the bit away first, sees the chain or leaves the bit.
  if ((used.load(std::memory_order_relaxed) & bit) == 0) {
    used.fetch_or(bit, std::memory_order_relaxed);
  }
  chain.head->next_chain = bin.first.load(std::memory_order_relaxed);
  bin.first.store(chain.head, std::memory_order_relaxed);
  return true;
}

Chain StreamDepot::take(std::size_t size_class) noexcept {
  Bin& bin = bins_[size_class];
  Block* first = bin.first.load(std::memory_order_relaxed);
  if (first == nullptr) return {};
  // What another processor has written last is fetched before the lock is held, or behind it.
  __builtin_prefetch(&first->next_chain);
  {
    const Locked locked(bin);
    first = bin.first.load(std::memory_order_relaxed);
    if (first == nullptr) return {};
    bin.first.store(first->next_chain, std::memory_order_relaxed);
  }
  const Chain chain{first, first->chain_count};
  room_.release(chain.count * class_size(size_class));
  return chain;
}

void StreamDepot::take_all(ChainList& chains) noexcept {
  for (std::size_t group = 0; group < used_.size(); ++group) {
    if (used_[group].load(std::memory_order_relaxed) == 0) continue;
    std::uint64_t bits = used_[group].exchange(0, std::memory_order_relaxed);
    for (; bits != 0; bits &= bits - 1) {
      const std::size_t index = group * 64 + static_cast<std::size_t>(std::countr_zero(bits));
      Bin& bin = bins_[index];
      const Locked locked(bin);
      Block* first = bin.first.exchange(nullptr, std::memory_order_relaxed);
      while (first != nullptr) {
        Block* next = first->next_chain;
        room_.release(first->chain_count * class_size(index));
        chains.push({first, first->chain_count});
        first = next;
      }
    }
  }
}

}  // namespace limbo
