// How the death of another process is told, on the producer's side for its consumers and on the
// consumer's side for its producers.
//
// | word  | meaning                                | how it is known                             |
// |-------|----------------------------------------|---------------------------------------------|
// | gone  | the process has ended, or has replaced | its pidfd is readable; or its life line and |
// |       | itself by exec                         | its connection are closed                   |
// | quiet | none of its GPU work runs any more     | gone, and its life line is closed by        |
// |       |                                        | everybody                                   |
//
// Where the life line proves less (late, MPS, exec), quiet needs a grace time on top; where a child
// of a late process held the driver's files already, it is never known. A closed connection alone
// is not gone, nor is a stopped or idle process.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "ipc/owned_fd.h"
#include "ipc/packet.h"
#include "ipc/service_thread.h"

namespace limbo {

inline constexpr std::chrono::milliseconds kQuietGrace{2000};

// The signals as they were seen, and what follows from them. No descriptors, so that every case can
// be tried in a test.
struct DeathSigns {
  using Clock = std::chrono::steady_clock;

  std::uint32_t life_line_flags = 0;
  bool process_ended = false;  // pidfd
  bool connection_closed = false;
  bool life_line_closed = false;
  std::optional<Clock::time_point> grace_from;  // when gone and the closed life line were both seen

  [[nodiscard]] bool gone() const noexcept {
    return process_ended || (life_line_closed && connection_closed);
  }
  [[nodiscard]] bool needs_grace() const noexcept;
  [[nodiscard]] bool never_quiet() const noexcept;

  // To be called after every change. When it will be quiet, if no sign changes any more: `now` or
  // earlier says that it is quiet now; nothing says that another sign must come first.
  [[nodiscard]] std::optional<Clock::time_point> quiet_at(Clock::time_point now);

  // Why a process that is gone is not quiet, for the holder list.
  [[nodiscard]] std::string why() const;
};

// Watches one process by its pidfd and life line, on the reaper. All calls on the reaper.
class PeerWatch {
 public:
  // `changed` is called after every sign. The descriptors are owned from here on, also where they
  // cannot be watched yet.
  PeerWatch(ServiceThread& reaper, OwnedFd pidfd, OwnedFd life_line, std::uint32_t flags,
            std::function<void()> changed);
  ~PeerWatch();
  PeerWatch(const PeerWatch&) = delete;
  PeerWatch& operator=(const PeerWatch&) = delete;

  [[nodiscard]] DeathSigns& signs() noexcept { return signs_; }
  // For duplicates: who waits for this process watches it too.
  [[nodiscard]] int pidfd() const noexcept { return pidfd_.get(); }
  [[nodiscard]] int life_line() const noexcept { return life_line_.get(); }
  [[nodiscard]] std::uint32_t life_line_flags() const noexcept { return signs_.life_line_flags; }
  // What else its process has said of its life line.
  void proves_less(std::uint32_t flags) noexcept { signs_.life_line_flags |= flags; }
  // Whether it is told of every sign. Where not, whoever owns it calls try_again, every kWatchAgain.
  [[nodiscard]] bool stands() const noexcept;
  // Looks at what is not watched, and watches it where that can be done now. True when there was a
  // sign, which `changed` is not told of.
  bool try_again() noexcept;
  // Looks at both descriptors now, without waiting for the thread's next round, and calls `changed`.
  void look_now();

 private:
  void watch_rest() noexcept;
  void see_pidfd();
  void see_life_line();

  ServiceThread& reaper_;
  OwnedFd pidfd_;
  OwnedFd life_line_;
  bool pidfd_watched_ = false;
  bool life_line_watched_ = false;
  DeathSigns signs_;
  std::function<void()> changed_;
};

// Whether `fd` can be a life line's far end: the end of a pipe that is read, and of one without a name,
// which hangs up for certain when nobody holds its other end.
[[nodiscard]] bool is_life_line(int fd) noexcept;

// Whether everybody has closed the end that is held.
[[nodiscard]] bool is_life_line_closed(int far_end) noexcept;

}  // namespace limbo
