#include "tests/tools/killmatrix/helper.h"

#include <chrono>

namespace limbo::killmatrix {

Helper::Helper(Actor& actor, std::atomic<std::uint64_t>& busy_since_us)
    : actor_(actor), busy_since_us_(busy_since_us), thread_([this] { run(); }) {}

Helper::~Helper() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void Helper::pause() {
  std::unique_lock lock(mutex_);
  wanted_still_ = true;
  changed_.notify_all();
  changed_.wait(lock, [&] { return still_; });
}

void Helper::resume() {
  const std::lock_guard lock(mutex_);
  wanted_still_ = false;
  changed_.notify_all();
}

void Helper::run() {
  std::unique_lock lock(mutex_);
  while (!ending_) {
    const bool still = wanted_still_;
    lock.unlock();
    busy_since_us_.store(now_us());
    const bool acted = !still && actor_.act();
    if (still) actor_.give_back();
    busy_since_us_.store(0);
    lock.lock();
    if (still) {
      still_ = true;
      changed_.notify_all();
      changed_.wait(lock, [&] { return ending_ || !wanted_still_; });
      still_ = false;
    } else if (!acted) {
      changed_.wait_for(lock, std::chrono::milliseconds(1));
    }
  }
}

}  // namespace limbo::killmatrix
