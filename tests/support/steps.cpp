#include "tests/support/steps.h"

#include <csignal>
#include <stdexcept>

#include "allocator/gate.h"  // kThreadSanitizer

#if defined(__x86_64__)
#include <ucontext.h>
#endif

namespace limbo::testing {
namespace {

#if defined(__SANITIZE_ADDRESS__)
constexpr bool kInstrumented = true;
#elif defined(__has_feature)
constexpr bool kInstrumented = __has_feature(address_sanitizer);
#else
constexpr bool kInstrumented = false;
#endif

#if defined(__x86_64__)

Steps* counted = nullptr;  // of the thread that is stepped through

// What comes before an instruction's operation code. 0xf0 is `lock`.
bool is_prefix(unsigned char byte) noexcept {
  switch (byte) {
    case 0x26:
    case 0x2e:
    case 0x36:
    case 0x3e:
    case 0x64:
    case 0x65:
    case 0x66:
    case 0x67:
    case 0xf0:
    case 0xf2:
    case 0xf3:
      return true;
    default:
      return (byte & 0xf0) == 0x40;  // REX
  }
}

void look_at(const unsigned char* instruction) noexcept {
  ++counted->instructions;
  bool lock = false;
  for (; is_prefix(*instruction); ++instruction) lock = lock || *instruction == 0xf0;
  const auto names_memory = [](unsigned char operands) { return (operands >> 6) != 3; };
  const bool exchange =
      (instruction[0] == 0x86 || instruction[0] == 0x87) && names_memory(instruction[1]);
  if (lock || exchange) ++counted->locked;
  if (instruction[0] != 0x0f) return;
  if (instruction[1] == 0x05) ++counted->system_calls;
  // lfence, mfence, sfence: 0f ae /5, /6, /7 without memory.
  if (instruction[1] == 0xae && !names_memory(instruction[2]) && instruction[2] >= 0xe8) {
    ++counted->fences;
  }
}

void on_trap(int /*signal*/, siginfo_t* /*info*/, void* context) {
  if (counted == nullptr) return;
  const auto& registers = static_cast<ucontext_t*>(context)->uc_mcontext.gregs;
  look_at(reinterpret_cast<const unsigned char*>(registers[REG_RIP]));
}

// The trap flag, bit 8. (The 128 bytes below the stack's end may be in use.)
[[gnu::always_inline]] inline void begin_steps() noexcept {
  __asm__ volatile(
      "subq $128, %%rsp\n\t"
      "pushfq\n\t"
      "orq $0x100, (%%rsp)\n\t"
      "popfq\n\t"
      "leaq 128(%%rsp), %%rsp" ::
          : "memory", "cc");
}
[[gnu::always_inline]] inline void end_steps() noexcept {
  __asm__ volatile(
      "leaq -128(%%rsp), %%rsp\n\t"
      "pushfq\n\t"
      "andq $-257, (%%rsp)\n\t"
      "popfq\n\t"
      "leaq 128(%%rsp), %%rsp" ::
          : "memory", "cc");
}

#endif

}  // namespace

const char* cannot_step() noexcept {
#if defined(__x86_64__)
  if (kThreadSanitizer || kInstrumented) return "A sanitizer has instructions of its own in it.";
  const Steps none = step_through([](void*) {}, nullptr);
  return none.instructions == 0 ? "This system does not let a process step through itself."
                                : nullptr;
#else
  return "Only x86-64's instructions are known.";
#endif
}

Steps step_through(void (*call)(void*), void* argument) {
  Steps steps;
#if defined(__x86_64__)
  struct sigaction trap = {};
  trap.sa_sigaction = on_trap;
  trap.sa_flags = SA_SIGINFO;
  struct sigaction before = {};
  if (sigaction(SIGTRAP, &trap, &before) != 0) {
    throw std::runtime_error("No handler for SIGTRAP could be set.");
  }
  counted = &steps;
  begin_steps();
  call(argument);
  end_steps();
  counted = nullptr;
  sigaction(SIGTRAP, &before, nullptr);
#else
  call(argument);
#endif
  return steps;
}

}  // namespace limbo::testing
