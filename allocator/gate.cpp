#include "allocator/gate.h"

#include <linux/membarrier.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <mutex>

#include "allocator/error.h"

namespace limbo {
namespace {

bool chose_membarrier = false;  // written once, by prepare

bool membarrier(int command) noexcept {
  return syscall(SYS_membarrier, command, 0, 0) == 0;
}

}  // namespace

bool Gate::process_uses_membarrier() noexcept {
  return chose_membarrier;
}

void Gate::prepare() {
  static std::once_flag once;
  std::call_once(once, [] {
    chose_membarrier = !kThreadSanitizer && membarrier(MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED);
  });
}

void Gate::ask_to_stop() noexcept {
  if (uses_membarrier_) stop_.store(1, std::memory_order_relaxed);
}

void Gate::barrier() {
  if (!chose_membarrier || membarrier(MEMBARRIER_CMD_PRIVATE_EXPEDITED)) return;
  throw Error(ErrorCode::kInternal, "The kernel refused membarrier after it had granted it.",
              "A seccomp filter installed after the first allocation may have caused it.");
}

void Gate::wait_until_stopped() noexcept {
  if (uses_membarrier_) {
    while (busy_.load(std::memory_order_acquire) != 0) sched_yield();
  } else {
    while (busy_.exchange(1, std::memory_order_acquire) != 0) sched_yield();
  }
}

void Gate::reopen() noexcept {
  if (uses_membarrier_) {
    stop_.store(0, std::memory_order_release);
  } else {
    busy_.store(0, std::memory_order_release);
  }
}

void Gate::cancel_stop() noexcept {
  if (uses_membarrier_) stop_.store(0, std::memory_order_release);
}

}  // namespace limbo
