// The capture gate: between two questions about a stream, no capture begins.
//
// Whoever has work to enqueue behind a stream of the program asks the driver whether the stream is
// being captured, then for its id, and enqueues. Where a capture begins on it after the first
// question, the second fails and ends the capture, and what is enqueued becomes part of the graph
// (measured). The driver has no call that asks both at once, so whoever begins a capture says so.
//
// It is no mutex. Those who ask exclude nobody but a beginning: they are counted in one word, which
// also counts the beginnings that are announced, so that going in and out is two atomic additions
// (some 10 ns together, less than a fifth of one question to the driver) however many threads ask.
// A beginning is announced first and then waits until those who were inside are out; whoever comes
// meanwhile is told so. A service thread and a release then look again later; a send, a receive and
// record_stream, which need an answer, wait.
//
// Whoever is inside asks and enqueues, as long as a launch takes, and takes no lock that is held
// while somebody waits here. A launch on a full stream takes long. So every wait is bounded, and
// behind its bound things go on as if nobody had announced anything: the capture may be lost, as
// one may that was not announced. An announcement ends with the guard; when the capture is seen to
// have begun, whoever sees it (the beginning thread may be waiting for the GIL by then); and after
// kLongestAnnouncement, so that one that is forgotten holds nobody up for long.
//
// In a fork child the gate is free, and what the parent had announced or was asking counts nothing.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

#include "allocator/device/device.h"

namespace limbo {

namespace capture_gate {

// A beginning waits so long for those who ask.
inline constexpr std::chrono::milliseconds kWaitForQuestions{100};
// Those who need an answer wait so long for a beginning.
inline constexpr std::chrono::milliseconds kWaitForBeginning{10};
inline constexpr std::chrono::milliseconds kLongestAnnouncement{1000};
// Who may destroy the stream next waits so long for those who ask whether its capture has begun: for
// one question of each to the driver.
inline constexpr std::chrono::milliseconds kWaitForAskers{1000};

// Until when the announced stream lives at least: what is destroyed may not be asked about.
enum class StreamLives : std::uint8_t {
  kUntilWithdrawn,
  // Nobody withdraws where the capture fails to begin. So the driver is not asked whether it has
  // begun; others wait until somebody sees that, or for as long as they do for a forgotten one.
  kNobodyKnows,
};

// Says that the calling thread is about to begin a capture on `stream`, waits for those who ask, and
// returns what names the announcement. BeginningCapture is this as a guard.
[[nodiscard]] std::uint64_t announce(StreamRef stream,
                                     StreamLives lives = StreamLives::kUntilWithdrawn);
// The capture has begun, or will not: ends every announcement of its stream. Behind it nobody asks the
// driver about the stream for its sake, and it may be destroyed: who does just then is waited for, at
// most kWaitForAskers. Naming one that is over does nothing.
void withdraw(std::uint64_t announcement) noexcept;
// The capture on `stream` is seen to have ended: as withdraw, for whoever has no announcement's name.
void ended(StreamRef stream) noexcept;
// It is seen to have begun: ends every announcement of its stream, and waits for nobody. Costs a load
// where nothing is announced.
void begun(StreamRef stream) noexcept;

// ---- behind StreamQuestion ------------------------------------------------------------------

inline constexpr std::uint64_t kOneBeginning = std::uint64_t{1} << 32;

extern constinit std::atomic<std::uint64_t> state;  // beginnings | askers, 32 bits each
extern constinit std::atomic<std::uint32_t> epoch;  // one more in every fork child

[[nodiscard]] inline bool try_enter() noexcept {
  // Sequentially consistent, as announcing is: one of both sees the other.
  if (state.fetch_add(1) < kOneBeginning) [[likely]] {
    return true;
  }
  state.fetch_sub(1);
  return false;
}
[[nodiscard]] bool enter_late(Device& device, std::chrono::milliseconds at_most) noexcept;

}  // namespace capture_gate

// Questions about streams that belong together, and what is enqueued upon the answers. One at a time
// in a thread.
class StreamQuestion {
 public:
  // Waits for nobody: false where somebody begins a capture just now.
  explicit StreamQuestion(Device& device) noexcept
      : inside_(capture_gate::try_enter() ||
                capture_gate::enter_late(device, std::chrono::milliseconds{0})) {}

  // Waits until the capture has begun, at most kWaitForBeginning; then goes on all the same.
  struct Patient {};
  StreamQuestion(Device& device, Patient /*tag*/) noexcept
      : inside_(capture_gate::try_enter() ||
                capture_gate::enter_late(device, capture_gate::kWaitForBeginning)) {}

  ~StreamQuestion() {
    if (inside_ && epoch_ == capture_gate::epoch.load(std::memory_order_relaxed)) {
      capture_gate::state.fetch_sub(1);
    }
  }
  StreamQuestion(const StreamQuestion&) = delete;
  StreamQuestion& operator=(const StreamQuestion&) = delete;

  explicit operator bool() const noexcept { return inside_; }

 private:
  const std::uint32_t epoch_ = capture_gate::epoch.load(std::memory_order_relaxed);
  const bool inside_;
};

// For whoever begins a capture, around the beginning and nothing else:
//
//   {
//     const limbo::BeginningCapture beginning({device, stream});
//     cudaStreamBeginCapture(stream, mode);
//   }
//
// Then a release or a send that another thread makes just then does not end the capture. Waits, at
// most kWaitForQuestions, for those who ask; `stream` lives until the guard ends. Several may begin
// at once. Throws std::bad_alloc.
class BeginningCapture {
 public:
  explicit BeginningCapture(StreamRef stream) : announcement_(capture_gate::announce(stream)) {}
  ~BeginningCapture() { capture_gate::withdraw(announcement_); }
  BeginningCapture(const BeginningCapture&) = delete;
  BeginningCapture& operator=(const BeginningCapture&) = delete;

 private:
  const std::uint64_t announcement_;
};

}  // namespace limbo
