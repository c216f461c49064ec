// The collect lock's word, private to the producer: a caller that must not wait asks the holder to
// look again instead, and goes on.
//
// | from             | to               | who                                | order           |
// |------------------|------------------|------------------------------------|-----------------|
// | 0                | locked           | try_lock, try_lock_or_ask          | acquire         |
// | locked           | locked, again    | try_lock_or_ask, meeting a holder  | release         |
// | locked, again    | locked           | unlock_or_again: "look again"      | acquire         |
// | locked           | 0                | unlock_or_again, unlock_owing      | release         |
// | locked, again    | 0                | unlock_owing: "I shall ask myself" | acquire,release |
//
// `again` is lost to nobody: it is set only while `locked` is, and unlocking is a compare-and-swap
// that fails when it is set, however late. Whoever holds the lock, for whatever reason, then runs
// the pass that was asked for. Where others ask again and again, so that it would never leave, it
// unlocks all the same and then asks as they do: it gets the lock and runs the pass, or another has
// it and is told. The release of `again` pairs with the holder's acquire, so that the
// pass sees what the asker had seen.
//
// A death here takes the word along.
#pragma once

#include <cstdint>

#include "ipc/protocol/memory.h"
#include "ipc/protocol/mistakes.h"

namespace limbo::protocol {

inline constexpr std::uint64_t kLocked = 1;
inline constexpr std::uint64_t kAgain = 2;

template <class Memory>
bool try_lock(Memory& memory, typename Memory::Ref word) {
  std::uint64_t seen = 0;
  return memory.compare_exchange(word, seen, kLocked, std::memory_order_acquire);
}

// True: locked by the caller. False: somebody else holds it and will look again.
template <class Memory>
bool try_lock_or_ask(Memory& memory, typename Memory::Ref word) {
  std::uint64_t seen = memory.load(word, std::memory_order_relaxed);
  for (;;) {
    if ((seen & kLocked) == 0) {
      if (memory.compare_exchange(word, seen, kLocked, std::memory_order_acquire)) return true;
    } else if (makes(Mistake::kCollectGivesUp) ||
               memory.compare_exchange(word, seen, kLocked | kAgain, std::memory_order_release)) {
      return false;
    }
  }
}

// False: still locked; somebody asked, and the caller must look again first.
template <class Memory>
bool unlock_or_again(Memory& memory, typename Memory::Ref word) {
  if (makes(Mistake::kAgainLost)) {
    memory.store(word, 0, std::memory_order_release);
    return true;
  }
  std::uint64_t seen = kLocked;
  if (memory.compare_exchange(word, seen, 0, std::memory_order_release)) return true;
  // Nobody changes it from here on but the holder: this succeeds.
  memory.compare_exchange(word, seen, kLocked, std::memory_order_acquire);
  return false;
}

// Unlocks in any case. True: somebody asked, and the caller must ask in its place.
template <class Memory>
bool unlock_owing(Memory& memory, typename Memory::Ref word) {
  std::uint64_t seen = kLocked;
  while (!memory.compare_exchange(word, seen, 0, std::memory_order_acq_rel)) {
  }
  return (seen & kAgain) != 0;
}

}  // namespace limbo::protocol
