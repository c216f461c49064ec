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
  StreamLives lives = StreamLives::kNobodyKnows;
  Clock::time_point until;
  int asked = 0;  // threads that are asking the driver about the stream
  bool over = false;
  bool forgotten = false;
};

struct Announcements {
  // A leaf: the driver is asked without it, since a fork waits for it. What is asked about is of
  // streams that are announced as living: what has ended is kept until nobody asks about its stream
  // any more, and withdrawing waits for that.
  std::mutex mutex;
  std::vector<Announcement> all;  // by number
  std::uint64_t last_number = 0;
};

// Never destroyed: service threads outlive static destruction.
Announcements& announcements() {
  static auto* made = new Announcements;
  return *made;
}

// ---- called under the lock ----

Announcement* find(Announcements& at, std::uint64_t number) {
  const auto found = std::find_if(at.all.begin(), at.all.end(),
                                  [&](const Announcement& one) { return one.number == number; });
  return found == at.all.end() ? nullptr : &*found;
}

bool is_asked_about(const Announcements& at, StreamRef stream) {
  return std::any_of(at.all.begin(), at.all.end(), [&](const Announcement& one) {
    return one.stream == stream && one.asked != 0;
  });
}

void forget_ended(Announcements& at) {
  for (Announcement& one : at.all) one.forgotten = one.over && !is_asked_about(at, one.stream);
  std::erase_if(at.all, [](const Announcement& one) { return one.forgotten; });
}

template <typename Predicate>
void end(Announcements& at, const Predicate& ends) {
  for (Announcement& one : at.all) {
    if (one.over || !ends(one)) continue;
    one.over = true;
    state.fetch_sub(kOneBeginning);
  }
  forget_ended(at);
}

void end_of_stream(Announcements& at, StreamRef stream) {
  end(at, [&](const Announcement& one) { return one.stream == stream; });
}

// ---- called without it ----

bool is_captured(Device& device, StreamRef stream) noexcept {
  try {
    return device.is_capturing(stream);
  } catch (...) {
    return false;
  }
}

// Whether captures are being begun still.
bool look(Device& device) noexcept {
  Announcements& at = announcements();
  std::unique_lock lock(at.mutex);
  const Clock::time_point now = Clock::now();
  end(at, [&](const Announcement& one) { return now >= one.until; });
  const std::uint64_t newest = at.last_number;
  for (std::uint64_t number = 0;;) {
    const auto next = std::find_if(at.all.begin(), at.all.end(), [&](const Announcement& one) {
      return one.number > number && !one.over && one.lives == StreamLives::kUntilWithdrawn;
    });
    if (next == at.all.end() || next->number > newest) break;
    number = next->number;
    const StreamRef stream = next->stream;
    ++next->asked;
    lock.unlock();
    const bool captured = is_captured(device, stream);
    lock.lock();
    --find(at, number)->asked;
    if (captured) {
      end_of_stream(at, stream);
    } else {
      forget_ended(at);
    }
  }
  return std::any_of(at.all.begin(), at.all.end(),
                     [](const Announcement& one) { return !one.over; });
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

// Ends all announcements of the stream, which may be destroyed next.
void end_and_wait(Announcements& at, std::unique_lock<std::mutex>& lock, StreamRef stream) {
  end_of_stream(at, stream);
  const Clock::time_point until = Clock::now() + kWaitForAskers;
  for (Pause pause; is_asked_about(at, stream) && Clock::now() < until;) {
    lock.unlock();
    pause.take();
    lock.lock();
  }
}

}  // namespace

std::uint64_t announce(StreamRef stream, StreamLives lives) {
  Announcements& at = announcements();
  std::uint64_t number = 0;
  {
    const std::lock_guard lock(at.mutex);
    number = ++at.last_number;
    at.all.push_back({.number = number,
                      .stream = stream,
                      .lives = lives,
                      .until = Clock::now() + kLongestAnnouncement});
    state.fetch_add(kOneBeginning);
  }
  const Clock::time_point until = Clock::now() + kWaitForQuestions;
  for (Pause pause; state.load() % kOneBeginning != 0 && Clock::now() < until;) pause.take();
  return number;
}

void withdraw(std::uint64_t announcement) noexcept {
  Announcements& at = announcements();
  std::unique_lock lock(at.mutex);
  const Announcement* own = find(at, announcement);
  if (own == nullptr) return;
  // The others of its stream as well: torch's capture is announced by its allocator too, which is
  // not told when it fails to begin.
  end_and_wait(at, lock, own->stream);
}

void ended(StreamRef stream) noexcept {
  Announcements& at = announcements();
  std::unique_lock lock(at.mutex);
  end_and_wait(at, lock, stream);
}

void begun(StreamRef stream) noexcept {
  if (state.load(std::memory_order_relaxed) < kOneBeginning) return;
  Announcements& at = announcements();
  const std::lock_guard lock(at.mutex);
  end_of_stream(at, stream);
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
