// The companion's hands: works off the streams' queues, one bounded step of each at a time.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <unordered_map>
#include <vector>

#include "allocator/device/sim_queue.h"

namespace limbo::sim {

using Clock = std::chrono::steady_clock;

// A mapping of host memory that the client has registered.
struct Registered {
  std::byte* data = nullptr;
  std::size_t size_bytes = 0;
  bool writable = false;
  // After unregistering: the tails of all streams by then. It is unmapped when they are reached.
  bool leaving = false;
  std::vector<std::uint64_t> last_positions;
};

// One thread uses it.
class Worker {
 public:
  // `memory` is the machine's whole file; `client_gone` asks whether the client has ended.
  Worker(Control& control, std::byte* memory, bool (*client_gone)(void*), void* context);
  ~Worker();
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  // One step of every stream. True when something moved.
  bool step_all();

  // What the streams stand at after a step: nothing, only waits and kernels (to be looked at now
  // and then), or work that goes on.
  enum class Activity { kIdle, kWaiting, kWorking };
  [[nodiscard]] Activity activity() const noexcept { return activity_; }

  // Whether there is an entry that the last step has not seen.
  [[nodiscard]] bool has_new_entries() const noexcept;

  void add(std::uint32_t id, const Registered& memory);
  void remove(std::uint32_t id);

 private:
  enum class Outcome { kDone, kWorking, kWaiting };

  struct StreamState {
    bool started = false;
    std::uint64_t progress = 0;  // of the entry that is being worked on
    Clock::time_point start;     // of a kernel
    std::uint64_t seen_tail = 0;
  };

  bool step(std::uint32_t slot);
  void complete(StreamQueue& queue, StreamState& state);
  Outcome run(StreamQueue& queue, StreamState& state, std::uint64_t position);
  Outcome fill(const Op& op, StreamState& state);
  Outcome copy(const Op& op, StreamState& state);
  Outcome kernel(const Op& op, StreamState& state);
  Outcome hold(StreamQueue& queue, StreamState& state, std::uint64_t position);
  void write_words(const StreamQueue& queue, const Op& op, std::uint64_t position);
  [[nodiscard]] bool word_reached(WordName word, std::uint64_t at_least);
  [[nodiscard]] std::uint64_t* word(WordName name, bool for_writing);
  void unmap_left();

  Control& control_;
  std::byte* memory_;
  bool (*client_gone_)(void*);
  void* context_;
  Activity activity_ = Activity::kIdle;
  bool some_leaving_ = false;
  std::vector<StreamState> states_;
  std::unordered_map<std::uint32_t, Registered> registered_;
};

}  // namespace limbo::sim
