// Threads that live as long as the benchmark, so that no round pays for their start.
#pragma once

#include <atomic>
#include <barrier>
#include <cstddef>
#include <functional>
#include <thread>
#include <vector>

namespace limbo::bench {

class Crew {
 public:
  // `enter` is run once in every thread before any work.
  Crew(std::size_t size, std::function<void()> enter);
  ~Crew();
  Crew(const Crew&) = delete;
  Crew& operator=(const Crew&) = delete;

  // Runs work(0) to work(count - 1) at once, each in a thread of its own, twice, and returns the
  // seconds of the second time, from the first start to the last end. By then the caches are filled
  // again that the rows between two rounds have emptied. The first exception of a thread is thrown
  // here.
  double run(std::size_t count, const std::function<void(std::size_t)>& work);

 private:
  struct Part;
  void live(std::size_t index, const std::function<void()>& enter);
  void meet();  // until all who work are awake and warm

  std::vector<Part> parts_;
  std::size_t count_ = 0;
  std::atomic<std::size_t> arrived_{0};
  const std::function<void(std::size_t)>* work_ = nullptr;  // null: the end
  std::barrier<> start_;
  std::barrier<> end_;
  std::vector<std::thread> threads_;
};

}  // namespace limbo::bench
