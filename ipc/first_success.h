// What is done once, by whoever comes first, and tried again by the next one where it threw.
//
// (std::call_once promises the same, but under ThreadSanitizer nobody comes back from a second call
// behind one that threw.)
#pragma once

#include <atomic>
#include <mutex>

namespace limbo {

class FirstSuccess {
 public:
  // Does `work`, unless it has been done. Others wait meanwhile. Whether it was done by this call.
  // Throws what `work` throws.
  template <class Work>
  bool run(const Work& work) {
    if (done_.load(std::memory_order_acquire)) return false;
    const std::lock_guard lock(mutex_);
    if (done_.load(std::memory_order_relaxed)) return false;
    work();
    done_.store(true, std::memory_order_release);
    return true;
  }

 private:
  std::mutex mutex_;  // held while the work is done, by those alone who need it done
  std::atomic<bool> done_{false};
};

}  // namespace limbo
