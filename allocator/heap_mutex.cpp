#include "allocator/heap_mutex.h"

namespace limbo {

void HeapMutex::lock_taken() noexcept {
  constexpr int kLooks = 200;  // some 50 ns each
  for (int looks = 0; looks < kLooks; ++looks) {
    if (state_.load(std::memory_order_relaxed) == kFree && try_lock()) return;
    __builtin_ia32_pause();
  }
  // Awaited from now on, also by its new holder: others may sleep too.
  while (state_.exchange(kAwaited, std::memory_order_acquire) != kFree) {
    state_.wait(kAwaited, std::memory_order_relaxed);
  }
}

}  // namespace limbo
