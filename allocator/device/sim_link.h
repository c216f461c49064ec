// A client's link to its companion: starting it, the socket, the queues, the doorbell.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>

#include "allocator/device/sim_channel.h"
#include "allocator/device/sim_machine.h"
#include "allocator/device/sim_queue.h"

namespace limbo::sim {

// Where the machine of this process is and what it is made with, from the environment.
struct MachineChoice {
  std::string path;
  MachineShape shape;
};

// LIMBO_SIM_MACHINE, else `sim-machine` in the runtime directory (made here, for the user only);
// LIMBO_SIM_DEVICES, LIMBO_SIM_MEMORY_MB. Throws kUnknownOption, kDeviceError.
[[nodiscard]] MachineChoice machine_from_environment();

// The program limbo_sim_companion: LIMBO_SIM_COMPANION, else beside this library or in ../bin.
// Throws kDeviceError that lists where it was looked for.
[[nodiscard]] std::string companion_program();

// Owns a mapping of memory.
struct Mapped {
  Mapped() = default;
  ~Mapped();
  Mapped(const Mapped&) = delete;
  Mapped& operator=(const Mapped&) = delete;

  void* data = nullptr;
  std::size_t size_bytes = 0;
};

// Thread-safe.
class Link {
 public:
  // Starts a companion and waits until it has joined the machine. Throws kDeviceError.
  explicit Link(const MachineChoice& choice);
  // Closes the client's end. Where no fork child has a copy, waits until the companion has ended.
  ~Link();
  Link(const Link&) = delete;
  Link& operator=(const Link&) = delete;

  [[nodiscard]] Control& control() noexcept { return *control_; }
  [[nodiscard]] Machine& machine() noexcept { return *machine_; }
  [[nodiscard]] std::int64_t companion_pid() const noexcept { return companion_pid_; }
  [[nodiscard]] int socket() const noexcept { return socket_.get(); }

  // True in a process that was forked off the one that made the link.
  [[nodiscard]] bool in_fork_child() const noexcept;

  // Wakes the companion if it sleeps. Called after a tail was stored.
  void ring() noexcept;

  // Sends a request with a descriptor (-1: none) and waits for the answer. Throws kDeviceError with
  // the companion's words; `call` begins the text.
  void request(const char* call, const Request& request, int descriptor);

  // The companion has ended, which happens only when it was killed.
  [[nodiscard]] bool lost() const noexcept;

 private:
  void make_shared_memory();
  void start(const MachineChoice& choice);
  void greet();

  Descriptor socket_;
  Descriptor queues_;
  Descriptor doorbell_;
  Mapped shared_;
  Control* control_ = nullptr;  // in shared_
  Mapped fork_page_;            // its first byte is 1 here, and wiped to 0 in fork children
  std::unique_ptr<Machine> machine_;
  std::int64_t companion_pid_ = 0;
  std::mutex request_mutex_;  // one request and its answer at a time; held over the socket calls
};

}  // namespace limbo::sim
