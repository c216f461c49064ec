// The program that allocator_target.cpp plays: what it has, and what it may do.
#pragma once

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <iterator>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "allocator/error.h"
#include "tests/fuzz/allocator_model.h"
#include "tests/unit/allocator_support.h"

namespace limbo::fuzz::allocator {

inline constexpr int kDevices = 2;
inline constexpr int kMemoryMb = 192;  // of each: it is short often
inline constexpr std::size_t kMiB = std::size_t{1} << 20;
inline constexpr std::size_t kAll = static_cast<std::size_t>(SizeKind::kAll);

// Lets go of held streams when a call takes long: it waits for them, and nobody else is there who
// would release them.
class Patience {
 public:
  explicit Patience(SimDevice& device) : device_(device), thread_([this] { run(); }) {
    thread_.detach();  // it is there as long as the process
  }

  void begin(std::vector<SimHold> holds) {
    const std::lock_guard lock(mutex_);
    holds_ = std::move(holds);
    waiting_ = true;
    released_ = false;
    changed_.notify_one();
  }
  // Whether the streams have been released.
  [[nodiscard]] bool end() {
    const std::lock_guard lock(mutex_);
    waiting_ = false;
    changed_.notify_one();
    return released_;
  }

 private:
  void run() {
    std::unique_lock lock(mutex_);
    while (true) {
      changed_.wait(lock, [this] { return waiting_; });
      if (changed_.wait_for(lock, std::chrono::milliseconds(3), [this] { return !waiting_; })) {
        continue;
      }
      for (const SimHold hold : holds_) device_.release_hold(hold);
      released_ = true;
      waiting_ = false;
    }
  }

  SimDevice& device_;
  std::mutex mutex_;  // guards all below
  std::condition_variable changed_;
  std::vector<SimHold> holds_;
  bool waiting_ = false;
  bool released_ = false;
  std::thread thread_;
};

// Its GPUs and their streams are the same for all inputs: there is a process behind them.
struct Machine {
  std::unique_ptr<SimDevice> device;
  std::vector<StreamRef> streams;
  std::unique_ptr<Patience> patience;
};

inline Machine& machine() {
  static Machine& made = *[] {
    const testing::OwnMachine own(kDevices, kMemoryMb);
    auto* machine = new Machine{testing::make_sim(), {}, {}};
    machine->patience = std::make_unique<Patience>(*machine->device);
    for (int device = 0; device < kDevices; ++device) {
      machine->streams.push_back({device, nullptr});
      machine->streams.push_back({device, machine->device->create_stream(device)});
      machine->streams.push_back({device, machine->device->create_stream(device)});
    }
    return machine;
  }();
  return made;
}

// Whoever lends: says of some pieces that others map them.
class PickyLender : public Lender {
 public:
  bool collect() override { return false; }
  bool collect_thoroughly(int, std::chrono::milliseconds) override { return false; }
  bool may_return_piece(std::uint64_t piece_id) override { return piece_id % 4 >= refused; }
  void piece_returned(std::uint64_t) override {}
  bool wait_for_unmapped_pieces(int, std::chrono::milliseconds) override { return false; }
  std::string describe_holders(int) override { return {}; }

  std::uint64_t refused = 0;  // of 4
};

class CountingProvider;  // allocator_pools.h

struct PlayedPool {
  int device = 0;
  PoolId id;
  int uses = 0;
  bool routed = false;
  std::optional<StreamHandle> filter;  // of the route; none: every stream
  bool use_on_oom = false;
  std::shared_ptr<CountingProvider> provider;
};

// A checkpoint, and what of the pool was allocated by then.
struct TakenCheckpoint {
  std::size_t pool = 0;
  std::shared_ptr<const Checkpoint> checkpoint;
  std::vector<Owned> allocated;  // by address
};

class World {
 public:
  explicit World(std::size_t kind);
  World(const World&) = delete;
  World& operator=(const World&) = delete;
  ~World();

  void act(Input& input);
  void check();
  void end();

 private:
  void allocate(Input& input);
  void free_own(Owned* owned);
  void free_wrongly(Input& input);
  void record(Input& input);
  void stand_or_go(Input& input);
  void capture_or_end(Input& input);
  void pin(Input& input);
  void unpin(Input& input);
  void drain();
  void elsewhere(Input& input);
  void make_room(Input& input);
  void change_policy(Input& input);
  void plan_fault(Input& input);
  void history(Input& input);
  void look(Input& input);
  void use_pool(Input& input);
  void go_back(Input& input);

  // `call` may wait for streams.
  template <typename Call>
  void patiently(Call call);

  [[nodiscard]] bool exists(const PlayedPool& pool);
  [[nodiscard]] PoolId expected_pool(StreamRef stream) const;
  [[nodiscard]] PoolId pool_of(const Owned& owned);
  [[nodiscard]] bool routed(int device) const;
  [[nodiscard]] static std::function<bool(StreamHandle)> everything();
  template <typename Call>
  void refuses(Call call, const char* rule);
  void end_route(std::size_t which);
  void end_pools();
  [[nodiscard]] std::vector<void*> forget_pool(const PlayedPool& pool);
  void take_checkpoint(std::size_t which);
  void restore_checkpoint(const TakenCheckpoint& taken);

  void hear(const TraceEntry& entry);
  void go_on(Line& line);
  void check_numbers(int device);
  void check_heard(int device);
  void check_pools();
  [[nodiscard]] std::size_t pick_line(Input& input) { return input.below(model_.lines.size()); }
  [[nodiscard]] bool anything_captures() const;

  SimDevice& device_ = *machine().device;
  PickyLender lender_;
  std::unique_ptr<Allocator> allocator_ = std::make_unique<Allocator>(device_);
  Model model_;
  Owned* spare_ = nullptr;  // what the free-memory callback frees when it is called next
  bool faults_ = false;     // a driver call may fail for no other reason

  std::vector<PlayedPool> pools_;
  std::vector<std::size_t> routes_;  // pools that allocations go to, oldest first
  std::vector<std::shared_ptr<CountingProvider>> providers_;
  std::vector<TakenCheckpoint> taken_;

  // What a tracker has heard: allocated blocks and segments by address. Only where one listens.
  bool tracked_ = false;
  std::map<std::uintptr_t, std::pair<int, std::size_t>> heard_blocks_;
  std::map<std::uintptr_t, std::pair<int, std::size_t>> heard_segments_;
  std::string heard_wrong_;
};

inline World::World(std::size_t kind) : tracked_(kind % 4 == 1) {
  for (const StreamRef stream : machine().streams) model_.lines.push_back({stream, {}, false, 0});
  for (int device = 0; device < kDevices; ++device) {
    for (std::uint64_t pool = 1; pool <= 2; ++pool) {
      PlayedPool& made = pools_.emplace_back();
      made.device = device;
      made.id = {0, pool};
    }
  }
  allocator_->set_lender(&lender_);
  allocator_->add_free_memory_callback([this] {
    if (spare_ == nullptr) return false;
    free_own(std::exchange(spare_, nullptr));
    return true;
  });
  if (tracked_) allocator_->add_trace_tracker([this](const TraceEntry& entry) { hear(entry); });
}

inline World::~World() {
  // Also behind a broken rule: the machine is as it was.
  device_.faults().clear();
  for (Line& line : model_.lines) {
    if (line.hold) device_.release_hold(*line.hold);
    try {
      if (line.capturing) (void)device_.end_capture(line.ref);
    } catch (const Error&) {
    }
  }
  device_.wait_until_idle();
}

inline bool World::anything_captures() const {
  return std::any_of(model_.lines.begin(), model_.lines.end(),
                     [](const Line& line) { return line.capturing; });
}

template <typename Call>
void World::patiently(Call call) {
  std::vector<SimHold> holds;
  for (const Line& line : model_.lines) {
    if (line.hold) holds.push_back(*line.hold);
  }
  if (holds.empty()) return call();
  machine().patience->begin(std::move(holds));
  const auto go_on = [this] {
    if (!machine().patience->end()) return;
    for (Line& line : model_.lines) {
      if (!line.hold) continue;
      line.hold.reset();
      ++line.turn;
    }
  };
  try {
    call();
  } catch (...) {
    go_on();
    throw;
  }
  go_on();
}

}  // namespace limbo::fuzz::allocator
