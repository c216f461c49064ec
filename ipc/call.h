// A call at a producer's socket: connecting, telling a living one from a dead one, sending, and
// waiting for answers, all within one deadline. A handshake is one, and so is a question.
#pragma once

#include <chrono>
#include <cstdint>
#include <span>
#include <string>

#include "ipc/connection.h"
#include "ipc/layout.h"
#include "ipc/messages.h"
#include "ipc/owned_fd.h"
#include "ipc/packet.h"
#include "ipc/runtime_directory.h"

namespace limbo {

// Where a producer listens, from a descriptor.
struct ProducerAddress {
  Incarnation incarnation;
  std::string directory;
  std::string socket_name;
};

// How the errors of a call speak of whom it is for.
struct CallWords {
  const char* who;             // "The sender"
  const char* cannot;          // "be reached"
  const char* has_ended;       // "The process that sent this has ended"
  const char* while_alive;     // what to do; may be empty
  bool names_refuser = false;  // what it refuses with is told as its words
};

class Call {
 public:
  // Connects. Throws kProducerExited when nobody listens there any more, kNoChannel (with the path
  // and the cause) when it cannot be reached. `words` outlives the call.
  Call(const ProducerAddress& address, std::chrono::milliseconds deadline, const CallWords& words);

  [[nodiscard]] std::int64_t pid() const noexcept { return pid_; }
  [[nodiscard]] Connection& connection() noexcept { return connection_; }
  // For whoever goes on with them; the call is over.
  [[nodiscard]] Connection take_connection() noexcept { return std::move(connection_); }
  [[nodiscard]] OwnedFd take_pidfd() noexcept { return std::move(pidfd_); }

  // Throws as the constructor does; and what the other side has refused with, where it did so before
  // it was spoken to, and closed.
  void send(std::span<const std::byte> message, std::span<const int> descriptors = {}) const;
  // The next packet, with a right frame. Throws kProducerExited and kNoChannel (also for another
  // version of the library); and what the other side refuses with.
  [[nodiscard]] Packet answer(MessageType& type) const;

  [[noreturn]] void fail(const std::string& cause) const;

 private:
  using Clock = std::chrono::steady_clock;

  [[nodiscard]] std::string whom() const;
  [[noreturn]] void exited(const std::string& sign) const;
  void connect();
  void check_listener();
  void check_alive() const;
  void wait_readable() const;

  const ProducerAddress address_;
  const RuntimeDirectory directory_;
  const std::int64_t deadline_ms_;
  const Clock::time_point until_;
  const CallWords& words_;
  Connection connection_;
  OwnedFd pidfd_;
  std::int64_t pid_ = 0;
};

}  // namespace limbo
