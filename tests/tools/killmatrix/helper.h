// A second thread that acts beside the first.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>

#include "tests/tools/killmatrix/actor.h"

namespace limbo::killmatrix {

class Helper {
 public:
  // `busy_since_us` is set during every action, for whoever looks for hangs.
  Helper(Actor& actor, std::atomic<std::uint64_t>& busy_since_us);
  ~Helper();
  Helper(const Helper&) = delete;
  Helper& operator=(const Helper&) = delete;

  // Returns when it has given back everything and stands still.
  void pause();
  void resume();

 private:
  void run();

  Actor& actor_;
  std::atomic<std::uint64_t>& busy_since_us_;
  std::mutex mutex_;  // guards the next four
  std::condition_variable changed_;
  bool wanted_still_ = false;
  bool still_ = false;
  bool ending_ = false;
  std::thread thread_;
};

}  // namespace limbo::killmatrix
