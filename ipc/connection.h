// A consumer's connection with one producer, and what is said when it ends.
//
// A connection that ends on this side while the producer lives says bye: nothing of the lease is
// held, mapped or on its way any more, so the producer may drop it now instead of at this process's
// end. The producer believes it only as far as the row bears it out.
#pragma once

#include <memory>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

#include "ipc/messages.h"
#include "ipc/owned_fd.h"

namespace limbo {

// The messages that somebody makes a connection for: where it comes to nothing, they are declined.
// Thread-safe.
class PromisedMessages {
 public:
  explicit PromisedMessages(const Decline& first) : messages_{first} {}

  // One more. False: too late, they are declined already.
  bool add(const Decline& message) {
    const std::lock_guard lock(mutex_);
    if (!ended_) messages_.push_back(message);
    return !ended_;
  }
  // No more come. The second time there are none.
  [[nodiscard]] std::vector<Decline> end() noexcept {
    const std::lock_guard lock(mutex_);
    ended_ = true;
    return std::exchange(messages_, {});
  }
  [[nodiscard]] bool have_ended() const noexcept {
    const std::lock_guard lock(mutex_);
    return ended_;
  }

 private:
  mutable std::mutex mutex_;  // guards what follows; a leaf
  bool ended_ = false;
  std::vector<Decline> messages_;
};

class Connection {
 public:
  Connection() noexcept = default;
  explicit Connection(OwnedFd socket) noexcept : socket_(std::move(socket)) {}
  Connection(Connection&& other) noexcept;
  Connection& operator=(Connection&& other) noexcept;
  // Declines what is owed, says bye, closes. In a fork child it only closes: the other end is its
  // parent's.
  ~Connection() { end(); }

  [[nodiscard]] int get() const noexcept { return socket_.get(); }

  // A message; one that cannot be sent is dropped (the producer is dead, or so far behind that it
  // looks at everything anyway). Thread-safe.
  bool send(std::span<const std::byte> message) const noexcept;

  // From here on the other end knows us: the end is told. Until then nothing is said.
  void has_said_hello() noexcept { greeted_ = true; }
  // What is declined if the connection ends before settle(): the messages that it was made for.
  void owe(std::shared_ptr<PromisedMessages> messages) noexcept { owed_ = std::move(messages); }
  void settle() noexcept { owed_.reset(); }

  // Says bye, once. The producer closes the connection when it agrees.
  void bye() noexcept;

 private:
  void end() noexcept;

  OwnedFd socket_;
  bool greeted_ = false;
  std::shared_ptr<PromisedMessages> owed_;
};

}  // namespace limbo
