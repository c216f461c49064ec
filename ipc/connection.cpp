#include "ipc/connection.h"

#include <exception>

#include "ipc/fail_points.h"
#include "ipc/fork_guard.h"
#include "ipc/packet.h"

namespace limbo {

Connection::Connection(Connection&& other) noexcept
    : socket_(std::move(other.socket_)),
      greeted_(std::exchange(other.greeted_, false)),
      owed_(std::move(other.owed_)) {}

Connection& Connection::operator=(Connection&& other) noexcept {
  if (this == &other) return *this;
  end();
  socket_ = std::move(other.socket_);
  greeted_ = std::exchange(other.greeted_, false);
  owed_ = std::move(other.owed_);
  return *this;
}

bool Connection::send(std::span<const std::byte> message) const noexcept {
  return send_packet(socket_.get(), message);
}

void Connection::bye() noexcept {
  if (!std::exchange(greeted_, false) || fork_guard::is_forked_child()) return;
  LIMBO_FAIL_POINT("bye.before_send");
  try {
    if (const auto owed = std::move(owed_)) {
      for (const Decline& message : owed->end()) (void)send(encode(message));
    }
    (void)send(encode_bye());
  } catch (const std::exception&) {
    // No memory for a message: the lease ends with this process, the promise by its time limit.
  }
}

void Connection::end() noexcept {
  bye();
  socket_.reset();
}

}  // namespace limbo
