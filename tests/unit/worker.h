// A thread for tests in which threads take turns.
#pragma once

#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>
#include <utility>

namespace limbo::testing {

// A thread that does one thing after another, and keeps its cache between them.
class Worker {
 public:
  Worker() : thread_([this] { live(); }) {}
  ~Worker() {
    run({});
    thread_.join();
  }
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  void run(std::function<void()> work) {
    std::unique_lock lock(mutex_);
    work_ = std::move(work);
    wanted_ = true;
    changed_.notify_all();
    changed_.wait(lock, [&] { return !wanted_; });
  }

 private:
  void live() {
    for (bool over = false; !over;) {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return wanted_; });
      over = work_ == nullptr;
      if (!over) work_();
      wanted_ = false;
      changed_.notify_all();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::function<void()> work_;
  bool wanted_ = false;
  std::thread thread_;
};

}  // namespace limbo::testing
