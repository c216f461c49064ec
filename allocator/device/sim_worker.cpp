#include "allocator/device/sim_worker.h"

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cstring>

#include "allocator/device/sim_futex.h"

namespace limbo::sim {

namespace {

constexpr int kEntriesPerStep = 64;
constexpr std::uint64_t kBytesPerStep = std::uint64_t{1} << 20;
constexpr std::uint64_t kKernelWordsPerStep = std::uint64_t{1} << 14;

// GPU memory is written word by word: other processes look at it meanwhile.
void store_word(std::byte* at, std::uint32_t value) noexcept {
  std::atomic_ref<std::uint32_t>(*reinterpret_cast<std::uint32_t*>(at))
      .store(value, std::memory_order_relaxed);
}

}  // namespace

Worker::Worker(Control& control, std::byte* memory, bool (*client_gone)(void*), void* context)
    : control_(control),
      memory_(memory),
      client_gone_(client_gone),
      context_(context),
      states_(kMaxStreams) {}

Worker::~Worker() {
  for (auto& [id, memory] : registered_) ::munmap(memory.data, memory.size_bytes);
}

bool Worker::step_all() {
  activity_ = Activity::kIdle;
  bool moved = false;
  const std::uint32_t used = control_.streams_used.load(std::memory_order_acquire);
  for (std::uint32_t slot = 0; slot < used; ++slot) moved = step(slot) || moved;
  if (some_leaving_) unmap_left();
  return moved;
}

bool Worker::has_new_entries() const noexcept {
  const std::uint32_t used = control_.streams_used.load();
  for (std::uint32_t slot = 0; slot < used; ++slot) {
    if (control_.streams[slot].tail.load() != states_[slot].seen_tail) return true;
  }
  return false;
}

bool Worker::step(std::uint32_t slot) {
  StreamQueue& queue = control_.streams[slot];
  StreamState& state = states_[slot];
  const std::uint64_t tail = queue.tail.load(std::memory_order_acquire);
  state.seen_tail = tail;
  std::uint64_t position = queue.completed.load(std::memory_order_relaxed);
  const std::uint64_t first = position;
  for (int budget = kEntriesPerStep; position < tail; ++position) {
    if (budget-- == 0) {
      activity_ = Activity::kWorking;
      break;
    }
    const std::uint32_t failed = control_.failed_devices.load(std::memory_order_acquire);
    const bool discard = ((failed >> queue.device.load(std::memory_order_relaxed)) & 1) != 0;
    const OpKind kind = queue.ring[position % kRingEntries].kind;
    // After a sticky error nothing starts any more; a kernel that runs goes on to its end.
    if (!discard || (kind == OpKind::kKernel && state.started)) {
      const Outcome outcome = run(queue, state, position);
      if (outcome != Outcome::kDone) {
        activity_ = std::max(
            activity_, outcome == Outcome::kWorking ? Activity::kWorking : Activity::kWaiting);
        break;
      }
    }
    complete(queue, state);
  }
  return position != first;
}

void Worker::complete(StreamQueue& queue, StreamState& state) {
  state.started = false;
  state.progress = 0;
  queue.completed.fetch_add(1);
  signal_waiters(queue.signal, queue.waiters);
}

Worker::Outcome Worker::run(StreamQueue& queue, StreamState& state, std::uint64_t position) {
  const Op& op = queue.ring[position % kRingEntries];
  const auto wait_until = [](bool over) { return over ? Outcome::kDone : Outcome::kWaiting; };
  switch (op.kind) {
    case OpKind::kNothing:
      return Outcome::kDone;
    case OpKind::kFill:
      return fill(op, state);
    case OpKind::kCopy:
      return copy(op, state);
    case OpKind::kWriteWords:
      write_words(queue, op, position);
      return Outcome::kDone;
    case OpKind::kWaitWord:
      return wait_until(word_reached(op.arguments[0], op.arguments[1]));
    case OpKind::kWaitPosition:
      return wait_until(control_.streams[op.arguments[0] % kMaxStreams].completed.load(
                            std::memory_order_acquire) >= op.arguments[1]);
    case OpKind::kKernel:
      return kernel(op, state);
    case OpKind::kHold:
      return hold(queue, state, position);
  }
  return Outcome::kDone;
}

Worker::Outcome Worker::fill(const Op& op, StreamState& state) {
  std::byte* const data = memory_ + op.arguments[0];
  const std::uint64_t end = std::min(op.arguments[2], state.progress + kBytesPerStep / 4);
  for (; state.progress < end; ++state.progress) {
    store_word(data + state.progress * 4, static_cast<std::uint32_t>(op.arguments[1]));
  }
  return state.progress == op.arguments[2] ? Outcome::kDone : Outcome::kWorking;
}

Worker::Outcome Worker::copy(const Op& op, StreamState& state) {
  const std::uint64_t part = std::min(op.arguments[2] - state.progress, kBytesPerStep);
  std::memmove(memory_ + op.arguments[0] + state.progress,
               memory_ + op.arguments[1] + state.progress, part);
  state.progress += part;
  return state.progress == op.arguments[2] ? Outcome::kDone : Outcome::kWorking;
}

// Writes the range from its start to its end, again and again, until its time is over; every word
// at least once.
Worker::Outcome Worker::kernel(const Op& op, StreamState& state) {
  const auto now = Clock::now();
  if (!state.started) {
    state.started = true;
    state.start = now;
  }
  const std::uint64_t words = op.arguments[2];
  std::byte* const data = memory_ + op.arguments[1];
  for (std::uint64_t i = 0; i < std::min(words, kKernelWordsPerStep); ++i, ++state.progress) {
    store_word(data + state.progress % words * 4, static_cast<std::uint32_t>(op.arguments[3]));
  }
  const bool over = now - state.start >= std::chrono::nanoseconds(op.arguments[0]);
  // Between two passes others may run: it waits, as far as the companion's sleep is concerned.
  return over && state.progress >= words ? Outcome::kDone : Outcome::kWaiting;
}

Worker::Outcome Worker::hold(StreamQueue& queue, StreamState& state, std::uint64_t position) {
  if (!state.started) {
    state.started = true;
    queue.holding.store(position + 1);
    signal_waiters(queue.signal, queue.waiters);
  }
  const bool over =
      queue.released.load(std::memory_order_acquire) > position || client_gone_(context_);
  return over ? Outcome::kDone : Outcome::kWaiting;
}

void Worker::write_words(const StreamQueue& queue, const Op& op, std::uint64_t position) {
  const Write* const writes =
      op.count <= kInlineWrites ? op.writes : queue.overflow[position % kRingEntries];
  for (std::uint32_t i = 0; i < std::min(op.count, kMaxWrites); ++i) {
    std::uint64_t* const target = word(writes[i].word, true);
    if (target == nullptr) continue;
    std::atomic_ref<std::uint64_t>(*target).store(writes[i].value, std::memory_order_release);
  }
}

bool Worker::word_reached(WordName name, std::uint64_t at_least) {
  std::uint64_t* const target = word(name, false);
  if (target == nullptr) return true;
  const std::uint64_t value =
      std::atomic_ref<std::uint64_t>(*target).load(std::memory_order_acquire);
  return static_cast<std::int64_t>(value - at_least) >= 0;
}

// Null only where the client has broken its own queue: the client checks before it enqueues.
std::uint64_t* Worker::word(WordName name, bool for_writing) {
  const auto found = registered_.find(static_cast<std::uint32_t>(name >> kWordShift));
  const std::uint64_t offset = name & ((std::uint64_t{1} << kWordShift) - 1);
  if (found == registered_.end() || offset + sizeof(std::uint64_t) > found->second.size_bytes ||
      (for_writing && !found->second.writable)) {
    return nullptr;
  }
  return reinterpret_cast<std::uint64_t*>(found->second.data + offset);
}

void Worker::add(std::uint32_t id, const Registered& memory) {
  registered_[id] = memory;
}

void Worker::remove(std::uint32_t id) {
  const auto found = registered_.find(id);
  if (found == registered_.end()) return;
  Registered& memory = found->second;
  memory.leaving = true;
  const std::uint32_t used = control_.streams_used.load();
  for (std::uint32_t slot = 0; slot < used; ++slot) {
    memory.last_positions.push_back(control_.streams[slot].tail.load());
  }
  some_leaving_ = true;
  unmap_left();
}

void Worker::unmap_left() {
  some_leaving_ = false;
  for (auto each = registered_.begin(); each != registered_.end();) {
    Registered& memory = each->second;
    bool over = memory.leaving;
    for (std::size_t slot = 0; over && slot < memory.last_positions.size(); ++slot) {
      over = control_.streams[slot].completed.load() >= memory.last_positions[slot];
    }
    some_leaving_ = some_leaving_ || (memory.leaving && !over);
    if (over) ::munmap(memory.data, memory.size_bytes);
    each = over ? registered_.erase(each) : std::next(each);
  }
}

}  // namespace limbo::sim
