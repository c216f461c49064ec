#include "allocator/capture_gate.h"

#include <pthread.h>

#include <algorithm>
#include <mutex>
#include <thread>
#include <vector>

namespace limbo::capture_gate {

constinit std::atomic<std::uint64_t> state{0};
constinit std::atomic<std::uint32_t> epoch{0};

namespace {

using Clock = std::chrono::steady_clock;

struct Announcement {
  std::uint64_t number = 0;
  StreamRef stream;
  Clock::time_point until;
};

struct Announcements {
  // A leaf. The one question to the driver that is asked under it (a read of the driver's own state,
  // which waits for no stream) is about a stream that is announced, and therefore lives: withdrawing
  // takes the lock.
  std::mutex mutex;
  std::vector<Announcement> all;
  std::uint64_t last_number = 0;
};

// Never destroyed: service threads outlive static destruction.
Announcements& announcements() {
  static auto* made = new Announcements;
  return *made;
}

// Called under the lock.
template <typename Predicate>
void erase(Announcements& at, Predicate&& over) {
  const auto count = std::erase_if(at.all, over);
  state.fetch_sub(count * kOneBeginning);
}

// Whether captures are being begun still.
bool look(Device& device) noexcept {
  Announcements& at = announcements();
  const std::lock_guard lock(at.mutex);
  const Clock::time_point now = Clock::now();
  erase(at, [&](const Announcement& one) {
    if (now >= one.until) return true;
    try {
      return device.is_capturing(one.stream);
    } catch (...) {
      return false;
    }
  });
  return !at.all.empty();
}

// So that the child's copy of the lock is free; children forked without handlers (by a system call)
// may wait here as long as the constants say.
void before_fork() noexcept {
  announcements().mutex.lock();
}
void after_fork() noexcept {
  announcements().mutex.unlock();
}
void in_child() noexcept {
  Announcements& at = announcements();
  at.all.clear();
  state.store(0);
  epoch.fetch_add(1);
  at.mutex.unlock();
}

struct AtLoad {
  AtLoad() noexcept {
    (void)announcements();
    ::pthread_atfork(before_fork, after_fork, in_child);
  }
};
AtLoad at_load;

// Yields at first: a question takes a microsecond.
class Pause {
 public:
  void take() {
    if (++taken_ < 64) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
  }

 private:
  int taken_ = 0;
};

}  // namespace

std::uint64_t announce(StreamRef stream) {
  Announcements& at = announcements();
  std::uint64_t number = 0;
  {
    const std::lock_guard lock(at.mutex);
    number = ++at.last_number;
    at.all.push_back({number, stream, Clock::now() + kLongestAnnouncement});
    state.fetch_add(kOneBeginning);
  }
  const Clock::time_point until = Clock::now() + kWaitForQuestions;
  for (Pause pause; state.load() % kOneBeginning != 0 && Clock::now() < until;) pause.take();
  return number;
}

void withdraw(std::uint64_t announcement) noexcept {
  Announcements& at = announcements();
  const std::lock_guard lock(at.mutex);
  const auto own = std::find_if(at.all.begin(), at.all.end(), [&](const Announcement& one) {
    return one.number == announcement;
  });
  if (own == at.all.end()) return;
  // The others of its stream as well: torch's capture is announced by its allocator too, which is
  // not told when it fails to begin.
  const StreamRef stream = own->stream;
  erase(at, [&](const Announcement& one) { return one.stream == stream; });
}

void begun(StreamRef stream) noexcept {
  if (state.load(std::memory_order_relaxed) < kOneBeginning) return;
  Announcements& at = announcements();
  const std::lock_guard lock(at.mutex);
  erase(at, [&](const Announcement& one) { return one.stream == stream; });
}

// Somebody has announced a capture, or had a moment ago.
bool enter_late(Device& device, std::chrono::milliseconds at_most) noexcept {
  const Clock::time_point until = Clock::now() + at_most;
  for (Pause pause;; pause.take()) {
    const bool begins = look(device);
    if (!begins && try_enter()) return true;
    if (begins && Clock::now() >= until) return false;
  }
}

}  // namespace limbo::capture_gate
