#include "tests/tools/replay/player.h"

#include <algorithm>
#include <chrono>
#include <exception>
#include <thread>
#include <vector>

namespace limbo::replay {
namespace {

using testing::Trace;
using testing::TraceEvent;

// One thread's part: all of the trace.
class Player {
 public:
  Player(Backend& backend, const Trace& trace, std::size_t first_stream)
      : backend_(backend), trace_(trace), blocks_(trace.block_count, nullptr) {
    for (std::size_t i = 0; i < trace.stream_count; ++i) {
      streams_.push_back(backend.stream(first_stream + i));
    }
  }

  // False: out of memory, and the rest of the trace was left out.
  bool play() {
    for (const TraceEvent& event : trace_.events) {
      void*& block = blocks_[event.block];
      if (event.allocate) {
        if (!backend_.allocate(event.size_bytes, streams_[event.stream], &block)) return false;
      } else {
        backend_.free(block);
        block = nullptr;
      }
    }
    return true;
  }

  void free_the_rest() {
    for (void* block : blocks_) {
      if (block != nullptr) backend_.free(block);
    }
  }

 private:
  Backend& backend_;
  const Trace& trace_;
  std::vector<void*> streams_;
  std::vector<void*> blocks_;
};

std::size_t round_up(std::size_t bytes) {
  return (bytes + kLimitStepBytes - 1) / kLimitStepBytes * kLimitStepBytes;
}

}  // namespace

Run play(Backend& backend, const Trace& trace, std::size_t limit_bytes, int threads) {
  backend.start(limit_bytes);
  std::vector<Player> players;
  for (int i = 0; i < threads; ++i) {
    players.emplace_back(backend, trace, static_cast<std::size_t>(i) * trace.stream_count);
  }
  std::vector<char> completed(players.size(), 0);
  std::vector<std::exception_ptr> errors(players.size());
  const auto play_one = [&](std::size_t index) {
    try {
      backend.begin_thread();
      completed[index] = players[index].play() ? 1 : 0;
    } catch (...) {
      errors[index] = std::current_exception();
    }
  };
  const auto begin = std::chrono::steady_clock::now();
  std::vector<std::thread> others;
  for (std::size_t i = 1; i < players.size(); ++i) others.emplace_back(play_one, i);
  play_one(0);
  for (std::thread& other : others) other.join();
  const std::chrono::duration<double, std::nano> took = std::chrono::steady_clock::now() - begin;
  for (const std::exception_ptr& error : errors) {
    if (error != nullptr) std::rethrow_exception(error);
  }
  Run run;
  run.completed =
      std::all_of(completed.begin(), completed.end(), [](char one) { return one != 0; });
  run.peak_reserved_bytes = backend.peak_reserved_bytes();
  const std::size_t events = std::max<std::size_t>(trace.events.size(), 1);
  run.ns_per_event = took.count() / static_cast<double>(events);
  for (Player& player : players) player.free_the_rest();
  return run;
}

std::size_t find_limit(Backend& backend, const Trace& trace, std::size_t enough_bytes) {
  std::size_t enough = round_up(enough_bytes);
  // Nothing fits into less than is requested.
  std::size_t too_little = round_up(trace.peak_bytes);
  if (too_little >= kLimitStepBytes) too_little -= kLimitStepBytes;
  while (enough - too_little > kLimitStepBytes) {
    const std::size_t middle = round_up(too_little + (enough - too_little) / 2);
    const std::size_t tried = std::min(middle, enough - kLimitStepBytes);
    if (play(backend, trace, tried, 1).completed) {
      enough = tried;
    } else {
      too_little = tried;
    }
  }
  return enough;
}

}  // namespace limbo::replay
