#include "ipc/fork_guard.h"

#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>

#include "allocator/error.h"
#include "ipc/layout.h"
#include "ipc/life_line.h"
#include "ipc/one_copy.h"

namespace limbo::fork_guard {
namespace {

// 1 in the process that wrote it, 0 in its fork children. Where the kernel cannot wipe (before
// 4.14), the child handler does it.
struct ForkPage {
  std::atomic<int> mine;
  std::atomic<void*> own_word;
};

ForkPage* map_page() noexcept {
  void* page =
      ::mmap(nullptr, kPageBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (page == MAP_FAILED) {
    static ForkPage fallback{};
    return &fallback;
  }
  ::madvise(page, kPageBytes, MADV_WIPEONFORK);
  return static_cast<ForkPage*>(page);
}

constinit std::atomic<bool> used{false};  // copied by fork: says what the parent had done
constinit std::atomic<int> listener{-1};
constinit ForkPage* page = nullptr;

// Async-signal-safe: system calls and atomics only.
void become_new_process() noexcept {
  life_line::renew_in_child();
  page->mine.store(1, std::memory_order_relaxed);
}

void in_child() noexcept {
  if (page == nullptr) return;
  page->mine.store(0, std::memory_order_relaxed);
  page->own_word.store(nullptr, std::memory_order_relaxed);
  if (!used.load(std::memory_order_relaxed)) {
    become_new_process();
    return;
  }
  if (const int fd = listener.exchange(-1); fd >= 0) ::close(fd);
}

// At load: the life line first, so that it gets the lowest number.
struct AtLoad {
  AtLoad() noexcept {
    life_line::make();
    page = map_page();
    page->mine.store(1, std::memory_order_relaxed);
    ::pthread_atfork(nullptr, nullptr, in_child);
  }
};
AtLoad at_load;

}  // namespace

void begin_use() {
  if (page->mine.load(std::memory_order_relaxed) == 0) [[unlikely]] {
    if (used.load(std::memory_order_relaxed)) {
      throw Error(ErrorCode::kForkedChild,
                  "This process was forked after its parent had begun to use Limbo.",
                  "Start it with the \"spawn\" or \"forkserver\" method, or fork before the first "
                  "use.");
    }
    become_new_process();  // forked by a system call that runs no handlers
  }
  if (!used.load(std::memory_order_relaxed)) [[unlikely]] {
    check_only_copy();
    used.store(true, std::memory_order_relaxed);
  }
}

bool is_forked_child() noexcept {
  return page->mine.load(std::memory_order_relaxed) == 0 && used.load(std::memory_order_relaxed);
}

std::atomic<void*>& own_word() noexcept {
  return page->own_word;
}

void set_listener(int fd) noexcept {
  listener.store(fd, std::memory_order_relaxed);
}

}  // namespace limbo::fork_guard
