// The producer's view of one consumer process.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <string>
#include <thread>

#include "ipc/sharing.h"
#include "tests/support/child_process.h"

namespace limbo::demo {

// A thread of its own listens to what the consumer reports.
class Peer {
 public:
  // Starts the process; returns when it is ready.
  explicit Peer(std::string name);
  ~Peer();
  Peer(const Peer&) = delete;
  Peer& operator=(const Peer&) = delete;

  [[nodiscard]] const std::string& name() const noexcept { return name_; }
  [[nodiscard]] pid_t pid() const noexcept { return child_.pid(); }

  [[nodiscard]] std::uint64_t received() const noexcept { return received_; }
  [[nodiscard]] std::uint64_t released() const noexcept { return released_; }
  [[nodiscard]] std::uint64_t corrupted() const noexcept { return corrupted_; }

  // Whether it takes another block now: it does not when it is behind, or was told to stop.
  [[nodiscard]] bool has_room();
  // False when it takes none any more: then the descriptor was not sent.
  [[nodiscard]] bool send(ByteSpan descriptor);

  // From now on it takes nothing, gives nothing back, and reads what it holds. Returns when all
  // that was sent before has been reported.
  void hold();
  // SIGKILL. Only after hold.
  void kill();
  // It gives everything back. Returns when all that was sent before has been reported.
  void give_back();
  // It ends, by itself. Only after give_back.
  void end();

 private:
  void listen();
  void join_listener();

  std::string name_;
  testing::ChildProcess child_;
  std::mutex mutex_;  // guards accepting_, and what goes to the child
  bool accepting_ = true;
  std::atomic<std::uint64_t> sent_{0};
  std::atomic<std::uint64_t> received_{0};
  std::atomic<std::uint64_t> released_{0};
  std::atomic<std::uint64_t> corrupted_{0};
  std::string failure_;  // written by the listener, read after it has ended
  std::thread listener_;
};

}  // namespace limbo::demo
