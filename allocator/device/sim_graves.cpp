#include "allocator/device/sim_graves.h"

#include <pthread.h>
#include <signal.h>

#include <chrono>
#include <utility>

namespace limbo::sim {
namespace {

constexpr std::chrono::milliseconds kLookAtGraves{1};

}  // namespace

Graves::~Graves() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void Graves::bury(std::shared_ptr<const Graph> graph, Over over) {
  {
    const std::lock_guard lock(mutex_);
    graves_.push_back({std::move(graph), std::move(over)});
    if (!thread_.joinable()) {
      sigset_t all;
      sigset_t before;
      ::sigfillset(&all);
      ::pthread_sigmask(SIG_SETMASK, &all, &before);
      thread_ = std::thread([this] { run(); });
      ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
    }
  }
  changed_.notify_all();
}

void Graves::run() {
  std::unique_lock lock(mutex_);
  while (!stopping_) {
    std::vector<Grave> looked = std::move(graves_);
    graves_.clear();
    lock.unlock();
    std::vector<Grave> left;
    for (Grave& grave : looked) {
      if (!grave.over()) left.push_back(std::move(grave));
    }
    looked.clear();
    lock.lock();
    graves_.insert(graves_.end(), std::make_move_iterator(left.begin()),
                   std::make_move_iterator(left.end()));
    if (stopping_) return;
    if (graves_.empty()) {
      changed_.wait(lock, [&] { return stopping_ || !graves_.empty(); });
    } else {
      changed_.wait_for(lock, kLookAtGraves);
    }
  }
}

}  // namespace limbo::sim
