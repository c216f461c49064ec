// Which process a connection is of: by the kernel's word, and by its own.
#pragma once

#include <sys/types.h>

#include <cstdint>

#include "ipc/layout.h"

namespace limbo {

// The incarnation is what a process says of itself, once it has said hello, and anybody can say it:
// processes list each other's. The rest is the kernel's word. Equal: all of it is.
struct ProcessIdentity {
  Incarnation incarnation;
  std::int64_t pid = 0;       // may be another's later; 0: of another pid namespace
  std::uint64_t process = 0;  // no other process's, ever; 0: the kernel has no such numbers

  // Whether the kernel says who it is.
  [[nodiscard]] bool is_known() const noexcept { return pid != 0 || process != 0; }
  friend bool operator==(const ProcessIdentity&, const ProcessIdentity&) = default;
};

// What the kernel says of the process behind a pidfd.
[[nodiscard]] ProcessIdentity identify_process(int pidfd, pid_t pid) noexcept;

// Whether two that live are one, whatever they say of themselves; where the kernel says nothing (of
// another pid namespace, on an old kernel), by what they say.
[[nodiscard]] bool are_one_process(const ProcessIdentity& one,
                                   const ProcessIdentity& other) noexcept;

}  // namespace limbo
