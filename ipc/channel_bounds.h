// What keeps one process from asking more of a channel than it can do: what is still to be done for one
// connection.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "ipc/service_thread.h"

namespace limbo {

// What one connection has asked for and what is not done yet. Its messages are read only while there
// is room: then its sender waits, as the kernel makes it wait for any reader, and nobody else does.
class Backlog : public std::enable_shared_from_this<Backlog> {
 public:
  // One thing that is to be done; over with its last copy, wherever that goes.
  using Turn = std::shared_ptr<const void>;
  // What is done once, however often it was asked for meanwhile.
  enum Once : std::uint32_t { kHalfFull = 1, kLostContext = 2 };

  Backlog(ServiceThread& reaper, std::uint32_t most) : reaper_(reaper), most_(most) {}

  [[nodiscard]] Turn turn();
  // False: that is to be done already. Whoever does it says begins() before.
  [[nodiscard]] bool ask(Once what) noexcept { return (asked_.fetch_or(what) & what) == 0; }
  void begins(Once what) noexcept { asked_.fetch_and(~std::uint32_t{what}); }

  // ---- the reaper's
  [[nodiscard]] bool has_room() const noexcept { return undone_.load() < most_; }
  // Again after a pause: with room for more than one, so that not every message makes it pause.
  [[nodiscard]] bool has_much_room() const noexcept { return undone_.load() <= most_ / 2; }
  // From here on the reaper is woken when there is much room.
  void wake_reaper(bool on) noexcept { wakes_reaper_.store(on); }

  // ---- the worker's word to the reaper: the consumer has left, and its lease is over.
  void has_left() noexcept {
    left_.store(true);
    reaper_.ring();
  }
  [[nodiscard]] bool left() const noexcept { return left_.load(); }

 private:
  struct Undone;
  void one_is_done() noexcept;

  ServiceThread& reaper_;
  const std::uint32_t most_;
  std::atomic<std::uint32_t> undone_{0};
  std::atomic<std::uint32_t> asked_{0};
  std::atomic<bool> wakes_reaper_{false};
  std::atomic<bool> left_{false};
};

}  // namespace limbo
