// The memory policy of the model: a thread makes one access that others can see, and stops.
//
// A segment is run from its start again and again. Accesses that it has made already are answered
// from the log; then it makes one more that can be told by others (a load, a compare-and-swap, an
// await), and stops before the next.
//
// Stores linger. A store, and an addition, waits in its thread's buffer and lands in a step of its
// own: a release behind everything before it, a relaxed one in any order but that of its word. A
// sequentially consistent one lands like a release, and a sequentially consistent load waits until
// all of its thread have landed; a compare-and-swap that releases waits for the whole buffer. Loads
// see their own thread's buffer first. (Loads are made in the order of the program: a relaxed load
// that must not be early would not be found out.)
#pragma once

#include <atomic>
#include <csetjmp>
#include <cstdint>

#include "tests/model/world.h"

namespace limbo::model {

// Told what a thread does, when a counter-example is printed.
class Observer {
 public:
  virtual ~Observer() = default;
  virtual void access(const char* what, Word word, std::uint32_t value) = 0;
};

// Orders that are taken away, to see that their lack is found.
enum class Weakened : std::uint8_t {
  kNothing,
  kConsumersSeqCst,  // {dirty} before {reading the export}
  kProducersSeqCst,  // {CLOSING} before {reading dirty words}
  kReleases,         // {RELEASED} before {dirty}, {group dirty} before {lease dirty}
};
inline Weakened g_weakened = Weakened::kNothing;

class Memory {
 public:
  using Ref = Word;

  // `choice`: what choose() returns if it is what this step comes to.
  Memory(World& world, std::uint32_t thread, bool is_producers, std::uint32_t choice,
         Observer* observer)
      : world_(world),
        thread_(world.threads[thread]),
        is_producers_(is_producers),
        choice_(choice),
        observer_(observer) {}

  std::uint64_t load(Ref word, std::memory_order order) {
    if (word == kNowhere) return 0;
    if (replays()) return next_logged();
    if (nobody_else_writes(word)) return logged(peek(word));
    if (acted_ || (weakened(order) == std::memory_order_seq_cst && seq_cst_pending())) stop();
    return acted(see("load", word, peek(word)));
  }

  void store(Ref word, std::uint64_t value, std::memory_order order) {
    write(word, narrow(value), false, order);
  }

  // Additions linger like stores, so what was there before is not known; nobody asks.
  std::uint64_t fetch_add(Ref word, std::uint64_t value, std::memory_order order) {
    write(word, static_cast<std::uint32_t>(value), true, order);
    return 0;
  }

  bool compare_exchange(Ref word, std::uint64_t& expected, std::uint64_t desired,
                        std::memory_order order) {
    const auto wanted = static_cast<std::uint32_t>(expected);
    if (!replays()) {
      if (acted_ || is_pending(word)) stop();
      const bool equal = world_.words[word] == wanted;
      const bool waits = order != std::memory_order_acquire && order != std::memory_order_relaxed;
      if (equal && waits && thread_.buffered > 0) stop();
      const std::uint32_t seen = world_.words[word];
      if (equal) world_.words[word] = narrow(desired);
      see(equal ? "swap" : "fail to swap", word, equal ? world_.words[word] : seen);
      expected = acted(seen);
    } else {
      expected = next_logged();
    }
    return expected == wanted;
  }

  // ---- what only the model does -----------------------------------------------------------

  // One step, possible only now.
  void await(bool possible) {
    if (replays()) {
      ++at_;
      return;
    }
    if (acted_ || !possible) stop();
    ++thread_.made;
    ++at_;
    acted_ = true;
  }
  void await_landed() { await(thread_.buffered == 0); }

  // One operation of the file system: `change` is made and answers at once. Where stores linger there
  // are none of these, and the other way round.
  template <class Change>
  std::uint32_t at_once(const char* what, Word word, Change change) {
    if (replays()) return static_cast<std::uint32_t>(next_logged());
    if (acted_) stop();
    const std::uint32_t answer = change();
    see(what, word, word == kNowhere ? answer : world_.words[word]);
    return static_cast<std::uint32_t>(acted(answer));
  }

  // One step that goes on in `ways` ways.
  std::uint32_t choose(std::uint32_t ways) {
    if (replays()) return static_cast<std::uint32_t>(next_logged());
    if (acted_) stop();
    ways_ = ways;
    return static_cast<std::uint32_t>(acted(choice_));
  }

  [[nodiscard]] bool has_acted() const noexcept { return acted_; }
  // A store was made, or a segment came to its end.
  [[nodiscard]] bool has_moved() const noexcept { return moved_; }
  [[nodiscard]] std::uint32_t ways() const noexcept { return ways_; }
  [[nodiscard]] bool overflowed() const noexcept { return overflowed_; }
  void begin_segment() noexcept { at_ = logged_at_ = 0; }
  void end_segment() noexcept { moved_ = true; }

  // What a load of this thread would return.
  [[nodiscard]] std::uint32_t peek(Word word) const noexcept {
    std::uint32_t value = world_.words[word];
    for (std::uint32_t i = 0; i < thread_.buffered; ++i) {
      const Pending& pending = thread_.pending[i];
      if (pending.word == word) value = pending.add ? value + pending.value : pending.value;
    }
    return value;
  }

  std::jmp_buf stopped;

 private:
  // The end of a timeline is more than any number here; all else is small.
  [[nodiscard]] static std::uint32_t narrow(std::uint64_t value) noexcept {
    return value < protocol::kTimelineEnded ? static_cast<std::uint32_t>(value) : 0x7fff'ffffU;
  }

  [[nodiscard]] bool replays() const noexcept { return at_ < thread_.made; }
  [[noreturn]] void stop() { std::longjmp(stopped, 1); }

  std::uint64_t next_logged() {
    ++at_;
    return thread_.log[logged_at_++];
  }
  std::uint64_t acted(std::uint32_t value) {
    acted_ = true;
    return logged(value);
  }
  std::uint64_t logged(std::uint32_t value) {
    if (thread_.logged == kMaxLog) {
      overflowed_ = true;
      stop();
    }
    ++thread_.made;
    thread_.log[thread_.logged++] = value;
    return next_logged();
  }
  std::uint32_t see(const char* what, Word word, std::uint32_t value) {
    if (observer_ != nullptr) observer_->access(what, word, value);
    return value;
  }

  void write(Word word, std::uint32_t value, bool add, std::memory_order order) {
    if (word == kNowhere) return;
    if (replays()) {
      ++at_;
      return;
    }
    if (thread_.buffered == kMaxPending) {
      overflowed_ = true;
      stop();
    }
    const std::memory_order kept = weakened(order);
    thread_.pending[thread_.buffered++] = {value, word, add, kept != std::memory_order_relaxed,
                                           kept == std::memory_order_seq_cst};
    see(add ? "add (pending)" : "store (pending)", word, value);
    ++thread_.made;
    ++at_;
    moved_ = true;
  }

  // A load that can be made at any time until the next store, so together with the access before it:
  // an export that is not FREE is changed by nobody but the thread that holds the collect lock.
  [[nodiscard]] bool nobody_else_writes(Word word) const noexcept {
    return is_producers_ && word >= kFirstExport && word < kFirstLease &&
           protocol::decode_export(world_.words[word]).state != protocol::ExportState::kFree;
  }
  [[nodiscard]] std::memory_order weakened(std::memory_order order) const noexcept {
    const Weakened which = is_producers_ ? Weakened::kProducersSeqCst : Weakened::kConsumersSeqCst;
    if (order == std::memory_order_seq_cst && g_weakened == which) return std::memory_order_release;
    const bool lost = order == std::memory_order_release && g_weakened == Weakened::kReleases;
    return lost ? std::memory_order_relaxed : order;
  }
  [[nodiscard]] bool is_pending(Word word) const noexcept {
    for (std::uint32_t i = 0; i < thread_.buffered; ++i) {
      if (thread_.pending[i].word == word) return true;
    }
    return false;
  }
  [[nodiscard]] bool seq_cst_pending() const noexcept {
    for (std::uint32_t i = 0; i < thread_.buffered; ++i) {
      if (thread_.pending[i].seq_cst) return true;
    }
    return false;
  }

  World& world_;
  Thread& thread_;
  const bool is_producers_;
  const std::uint32_t choice_;
  Observer* const observer_;
  std::uint32_t at_ = 0;         // accesses of this run so far
  std::uint32_t logged_at_ = 0;  // those of them that returned something
  bool acted_ = false;
  bool moved_ = false;
  bool overflowed_ = false;
  std::uint32_t ways_ = 1;
};

// Whether the pending store may land now.
inline bool may_land(const Thread& thread, std::uint32_t which) noexcept {
  for (std::uint32_t before = 0; before < which; ++before) {
    if (thread.pending[which].release ||
        thread.pending[before].word == thread.pending[which].word) {
      return false;
    }
  }
  return true;
}

}  // namespace limbo::model
