// The instructions that a piece of code executes, seen one by one: the processor traps after each.
// For what must not be in a hit: locked instructions, fences, system calls. x86-64 only.
#pragma once

#include <cstdint>

namespace limbo::testing {

struct Steps {
  std::uint64_t instructions = 0;
  std::uint64_t locked = 0;  // atomic read-modify-writes: a lock prefix, or xchg with memory
  std::uint64_t fences = 0;
  std::uint64_t system_calls = 0;
};

// Why this process cannot be stepped through; null if it can.
[[nodiscard]] const char* cannot_step() noexcept;

// Steps through call(argument) in the calling thread. One thread of a process at a time; some
// microseconds for each instruction. The few that enter and leave are among them.
[[nodiscard]] Steps step_through(void (*call)(void*), void* argument);

template <class Call>
[[nodiscard]] Steps steps_of(Call&& call) {
  return step_through([](void* argument) { (*static_cast<Call*>(argument))(); }, &call);
}

}  // namespace limbo::testing
