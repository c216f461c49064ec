// What this process asks a producer for over its connection and waits for: sent by the thread that
// wants it, answered through the reaper, which reads the connection.
//
// Thread-safe. An answer for which nobody waits any more is told to the caller of `answered`.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>

#include "ipc/connection.h"
#include "ipc/packet.h"

namespace limbo {

inline constexpr std::chrono::milliseconds kAnswerDeadline{1000};

class OwnerRequests {
 public:
  explicit OwnerRequests(const Connection& connection) : connection_(connection) {}

  // Sends what `message` makes of a request's number, and waits for the answer with that number, at
  // most kAnswerDeadline. `what` for the error's text: "send memory on". Throws kNoChannel when none
  // comes, or the connection is closed. No lock is held while it waits.
  [[nodiscard]] Packet ask(const std::string& what,
                           const std::function<MessageBytes(std::uint64_t)>& message);

  // Sends it until the connection takes it, at most so long. False: it does not, or is closed.
  [[nodiscard]] bool say(const MessageBytes& message, std::chrono::steady_clock::time_point until);

  // ---- the reaper's
  // False: nobody waits for it any more.
  [[nodiscard]] bool answered(std::uint64_t request, Packet&& answer);
  // The connection is closed: whoever waits is told.
  void closed() noexcept;

 private:
  struct Pending {
    bool is_answered = false;
    Packet answer;
  };

  const Connection& connection_;
  std::mutex mutex_;  // guards what follows; a leaf
  std::condition_variable changed_;
  std::map<std::uint64_t, Pending*> pending_;
  std::uint64_t last_request_ = 0;
  bool closed_ = false;
};

}  // namespace limbo
