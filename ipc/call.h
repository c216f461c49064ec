// A call at a producer's socket: connecting, telling a living one from a dead one, and waiting for
// answers, all within one deadline.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include "ipc/handshake.h"
#include "ipc/owned_fd.h"
#include "ipc/packet.h"
#include "ipc/runtime_directory.h"

namespace limbo {

class Call {
 public:
  // Connects. Throws kProducerExited when nobody listens there any more, kNoChannel (with the path
  // and the cause) when it cannot be reached.
  Call(const ProducerAddress& address, std::chrono::milliseconds deadline);

  [[nodiscard]] std::int64_t pid() const noexcept { return pid_; }

  // Throws as the constructor does.
  void send(std::span<const std::byte> message) const;
  // The next packet, with a right frame. Throws kProducerExited and kNoChannel; and what the other
  // side refuses with, in its words.
  [[nodiscard]] Packet answer(MessageType& type) const;

  [[noreturn]] void fail(const std::string& cause) const;

 private:
  using Clock = std::chrono::steady_clock;

  [[noreturn]] void exited(const std::string& sign) const;
  [[nodiscard]] std::string path() const { return address_.directory + "/" + address_.socket_name; }
  void connect();
  void check_listener();
  void wait_readable() const;

  const ProducerAddress address_;
  const RuntimeDirectory directory_;
  const std::int64_t deadline_ms_;
  const Clock::time_point until_;
  OwnedFd socket_;
  OwnedFd pidfd_;
  std::int64_t pid_ = 0;
};

}  // namespace limbo
