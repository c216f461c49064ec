#include "ipc/life_line.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <string>
#include <utility>

#include "allocator/error.h"
#include "ipc/driver_files.h"
#include "ipc/protocol/mistakes.h"

namespace limbo::life_line {
namespace {

constexpr int kFirstNumber = 3;  // 0 to 2 are the program's to replace

// One end: its number, and what tells it from whatever may have that number later.
struct End {
  const int access;  // the ends of a pipe have one inode
  std::atomic<int> fd{-1};
  std::atomic<std::uint64_t> inode{0};

  [[nodiscard]] bool alive() const noexcept {
    struct stat facts {};
    const int number = fd.load(std::memory_order_relaxed);
    return number >= 0 && ::fstat(number, &facts) == 0 && S_ISFIFO(facts.st_mode) &&
           facts.st_ino == inode.load(std::memory_order_relaxed) &&
           (::fcntl(number, F_GETFL) & O_ACCMODE) == access;
  }
  void set(int number) noexcept {
    struct stat facts {};
    if (::fstat(number, &facts) == 0) inode.store(facts.st_ino, std::memory_order_relaxed);
    fd.store(number, std::memory_order_relaxed);
  }
  void close_if_alive() noexcept {
    if (alive()) ::close(fd.load(std::memory_order_relaxed));
    fd.store(-1, std::memory_order_relaxed);
  }
};

// Constant-initialised: usable before any other static object is made.
constinit End held_end{O_WRONLY};  // never sent
constinit End other_end{O_RDONLY};
constinit std::atomic<std::uint32_t> made_flags{0};
constinit std::mutex remake_mutex;  // guards making a lost line anew; nothing is called under it

// Of a line that is made, or lost, when files of the driver are open.
std::uint32_t flags_of_late() noexcept {
  if (!own_driver_files().any()) return 0;
  return descendant_has_driver_files() ? kLate | kLateWithChildren : kLate;
}

// The far end once more, of the pipe whose held end is `held`: those who watch it see no change.
int reopen_far_end(int held) noexcept {
  std::array<char, 32> path{};
  std::snprintf(path.data(), path.size(), "/proc/self/fd/%d", held);
  const int low = ::open(path.data(), O_RDONLY | O_NONBLOCK | O_CLOEXEC);
  if (low < 0 || low > held) return low;
  const int far = ::fcntl(low, F_DUPFD_CLOEXEC, held + 1);
  ::close(low);
  return far;
}

bool mps_may_be_used() noexcept {
  if (std::getenv("CUDA_MPS_PIPE_DIRECTORY") != nullptr) return true;
  return ::access("/tmp/nvidia-mps/control", F_OK) == 0;
}

}  // namespace

Ends make_ends() noexcept {
  int pipe[2] = {-1, -1};
  if (::pipe2(pipe, O_CLOEXEC) != 0) return {};
  // The kernel gives the lower number to the end that is read: that one moves up, the other down.
  Ends ends;
  ends.far = ::fcntl(pipe[0], F_DUPFD_CLOEXEC, std::max(pipe[1] + 1, kFirstNumber));
  ::close(pipe[0]);
  ends.held = ends.far < 0 ? -1 : ::fcntl(pipe[1], F_DUPFD_CLOEXEC, kFirstNumber);
  if (ends.held > pipe[1] && pipe[1] >= kFirstNumber) std::swap(ends.held, pipe[1]);
  ::close(pipe[1]);
  if (ends.held >= 0) return ends;
  if (ends.far >= 0) ::close(ends.far);
  return {};
}

void make() noexcept {
  const Ends ends = make_ends();
  if (ends.held < 0) return;
  const std::uint32_t flags = flags_of_late();
  held_end.set(ends.held);
  other_end.set(ends.far);
  made_flags.store(flags, std::memory_order_relaxed);
}

void renew_in_child() noexcept {
  const bool keeps = !protocol::makes(protocol::Mistake::kChildDropsLifeLine);
  if (!keeps || !own_driver_files().any()) held_end.close_if_alive();
  held_end.fd.store(-1, std::memory_order_relaxed);
  other_end.close_if_alive();
  make();
}

int far_end() {
  const std::lock_guard lock(remake_mutex);
  if (held_end.alive() && !other_end.alive()) {
    const int far = reopen_far_end(held_end.fd.load(std::memory_order_relaxed));
    if (far >= 0) other_end.set(far);
  }
  if (!held_end.alive() || !other_end.alive()) {
    // A held end that lives is left open: whoever has been handed the far end still believes it.
    other_end.close_if_alive();
    make();
  }
  if (!other_end.alive()) {
    throw Error(
        ErrorCode::kNoChannel,
        std::string("The life line of this process cannot be made: ") + std::strerror(errno) + ".",
        "Raise the limit of open files.");
  }
  return other_end.fd.load(std::memory_order_relaxed);
}

int near_end() noexcept {
  return held_end.alive() ? held_end.fd.load(std::memory_order_relaxed) : -1;
}

std::uint32_t flags() {
  std::uint32_t flags = made_flags.load(std::memory_order_relaxed);
  if (!held_end.alive()) flags |= flags_of_late();
  if (own_driver_file_below(held_end.fd.load(std::memory_order_relaxed))) flags |= kLate;
  if (mps_may_be_used()) flags |= kPerhapsMps;
  return flags;
}

}  // namespace limbo::life_line
