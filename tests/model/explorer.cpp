// Depth first. Several threads share what was seen; each starts from its own part of the first
// states, which were found breadth first.
#include "tests/model/explorer.h"

#include <atomic>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>

#include "tests/model/fingerprints.h"
#include "tests/model/moves.h"

namespace limbo::model {
namespace {

struct Start {
  World world;
  std::vector<Move> path;
};

struct Frame {
  World world;
  Moves moves;
  std::uint32_t at = 0;
  bool moved = false;
};

class Exploration {
 public:
  Exploration(const Scenario& scenario, const Bounds& bounds)
      : scenario_(scenario),
        max_states_(bounds.max_states),
        until_(Clock::now() + bounds.at_most) {}

  Result run(unsigned threads) {
    Start first{beginning(scenario_), {}};
    is_new(first.world);
    starts_.push_back(std::move(first));
    if (threads > 1) spread(64U * threads);
    std::vector<std::thread> workers;
    for (unsigned i = 0; i < threads; ++i) workers.emplace_back([this] { work(); });
    for (std::thread& worker : workers) worker.join();
    result_.states = states_;
    result_.ends = ends_;
    result_.complete = !gave_up_;
    return std::move(result_);
  }

 private:
  using Clock = std::chrono::steady_clock;

  bool is_new(const World& world) {
    if (!seen_.insert(fingerprint_of(world, scenario_))) return false;
    const std::uint64_t states = states_.fetch_add(1) + 1;
    const bool late = states % 4096 == 0 && Clock::now() >= until_;
    if (late || states >= max_states_) gave_up_ = stop_ = true;
    return true;
  }

  // One more move of `frame`: true where it leads to a state that was not seen before, in `next`.
  bool advance(Frame& frame, World& next, Move& made) {
    while (frame.at < frame.moves.size && !stop_) {
      made = frame.moves.list[frame.at++];
      copy_world(next, frame.world, scenario_.threads.size());
      std::uint32_t ways = 1;
      if (!make_move(scenario_, next, made, ways, nullptr)) continue;
      frame.moved = true;
      if (made.which + 1U < ways && made.kind == Move::Kind::kThread) {
        frame.moves.add(made.kind, made.who, made.which + 1U);
      }
      if (is_new(next)) return true;
    }
    return false;
  }

  void open(Frame& frame) {
    frame.moves.size = 0;
    frame.at = 0;
    frame.moved = false;
    list_moves(scenario_, frame.world, frame.moves);
  }

  template <class Path>
  void look(World& world, bool at_end, Path&& path) {
    if (at_end && world.own.truth.broken == 0) {
      ++ends_;
      look_at_end(scenario_, world, nullptr);
    }
    if (world.own.truth.broken == 0) return;
    stop_ = true;
    const std::lock_guard lock(mutex_);
    if (result_.broken != Rule::kNone) return;
    result_.broken = static_cast<Rule>(world.own.truth.broken);
    result_.path = path();
  }

  void spread(std::size_t wanted) {
    Frame frame;
    while (!starts_.empty() && starts_.size() < wanted && !stop_) {
      const Start start = std::move(starts_.front());
      starts_.pop_front();
      frame.world = start.world;
      open(frame);
      Start next = start;
      Move made;
      while (advance(frame, next.world, made)) {
        next.path.push_back(made);
        look(next.world, false, [&] { return next.path; });
        starts_.push_back(next);
        next.path.pop_back();
      }
      if (!frame.moved) look(frame.world, true, [&] { return start.path; });
    }
  }

  void work() {
    for (;;) {
      Start start;
      {
        const std::lock_guard lock(mutex_);
        if (starts_.empty()) return;
        start = std::move(starts_.front());
        starts_.pop_front();
      }
      go_deep(start);
    }
  }

  void go_deep(const Start& start) {
    std::vector<std::unique_ptr<Frame>> frames;
    std::vector<Move> moves;
    std::size_t depth = 0;
    const auto push = [&](const World& world) {
      if (depth == frames.size()) frames.push_back(std::make_unique<Frame>());
      copy_world(frames[depth]->world, world, scenario_.threads.size());
      open(*frames[depth++]);
    };
    const auto path = [&] {
      std::vector<Move> all = start.path;
      all.insert(all.end(), moves.begin(), moves.end());
      return all;
    };
    push(start.world);
    World next;
    Move made;
    while (depth > 0 && !stop_) {
      Frame& frame = *frames[depth - 1];
      if (advance(frame, next, made)) {
        moves.push_back(made);
        look(next, false, path);
        push(next);
        continue;
      }
      if (!frame.moved && !stop_) look(frame.world, true, path);
      --depth;
      if (!moves.empty()) moves.pop_back();
    }
  }

  const Scenario& scenario_;
  const std::uint64_t max_states_;
  const Clock::time_point until_;
  SeenStates seen_;
  std::atomic<std::uint64_t> states_{0};
  std::atomic<std::uint64_t> ends_{0};
  std::atomic<bool> stop_{false};
  std::atomic<bool> gave_up_{false};
  std::mutex mutex_;  // guards what follows
  std::deque<Start> starts_;
  Result result_;
};

}  // namespace

Result explore(const Scenario& scenario, unsigned threads, const Bounds& bounds) {
  return Exploration(scenario, bounds).run(threads);
}

}  // namespace limbo::model
