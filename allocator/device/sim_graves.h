// Graphs that were destroyed while a launch of them ran: what they keep is let go of at its end.
#pragma once

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "allocator/device/sim_capture.h"

namespace limbo::sim {

// Thread-safe. Its thread starts with the first graph that is destroyed so.
class Graves {
 public:
  using Over = std::function<bool()>;

  Graves() = default;
  // Lets go of everything.
  ~Graves();
  Graves(const Graves&) = delete;
  Graves& operator=(const Graves&) = delete;

  // Keeps `graph` until `over()`, which is asked on the thread, says yes.
  void bury(std::shared_ptr<const Graph> graph, Over over);

 private:
  struct Grave {
    std::shared_ptr<const Graph> graph;
    Over over;
  };

  void run();

  std::mutex mutex_;  // guards what follows; nothing is called under it
  std::condition_variable changed_;
  std::vector<Grave> graves_;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace limbo::sim
