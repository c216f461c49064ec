#include "allocator/device/sim_link.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>

#include "allocator/device/sim_spawn.h"
#include "allocator/error.h"

namespace limbo::sim {

namespace {

// A process's own descriptors come first, the driver's are numbered high: a dying process closes
// from the highest down, so that its GPU stops before its life line tells so.
constexpr int kFirstDescriptor = 200;
constexpr std::chrono::seconds kGreeting{30};
constexpr std::chrono::seconds kEnding{2};

[[noreturn]] void fail_link(const char* what) {
  throw Error(ErrorCode::kDeviceError,
              std::string("simulated device: ") + what + " failed: " + std::strerror(errno) + ".");
}

Descriptor numbered_high(Descriptor low) {
  const int high = ::fcntl(low.get(), F_DUPFD_CLOEXEC, kFirstDescriptor);
  return high >= 0 ? Descriptor(high) : std::move(low);
}

// True when `events` came within the time. Signals (a SIGCHLD of the companion's start among them)
// do not end the wait.
bool wait_for(int fd, short events, std::chrono::milliseconds at_most) {
  const auto deadline = std::chrono::steady_clock::now() + at_most;
  pollfd polled{fd, events, 0};
  while (true) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
        deadline - std::chrono::steady_clock::now());
    const int ready = ::poll(&polled, 1, static_cast<int>(std::max<std::int64_t>(left.count(), 0)));
    if (ready >= 0 || errno != EINTR) return ready > 0;
  }
}

}  // namespace

Mapped::~Mapped() {
  if (data != nullptr && data != MAP_FAILED) ::munmap(data, size_bytes);
}

Link::Link(const MachineChoice& choice) {
  make_shared_memory();
  start(choice);
  greet();
}

void Link::make_shared_memory() {
  queues_ = numbered_high(Descriptor(::memfd_create("limbo-sim-queues", MFD_CLOEXEC)));
  if (queues_.get() < 0 || ::ftruncate(queues_.get(), static_cast<off_t>(kControlBytes)) != 0) {
    fail_link("making the stream queues");
  }
  doorbell_ = numbered_high(Descriptor(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)));
  if (doorbell_.get() < 0) fail_link("making the doorbell");
  shared_.size_bytes = kControlBytes;
  shared_.data = ::mmap(nullptr, kControlBytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE,
                        queues_.get(), 0);
  if (shared_.data == MAP_FAILED) fail_link("mapping the stream queues");
  ::madvise(shared_.data, kControlBytes, MADV_DONTFORK);
  control_ = static_cast<Control*>(shared_.data);
  fork_page_.size_bytes = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  fork_page_.data = ::mmap(nullptr, fork_page_.size_bytes, PROT_READ | PROT_WRITE,
                           MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (fork_page_.data == MAP_FAILED ||
      ::madvise(fork_page_.data, fork_page_.size_bytes, MADV_WIPEONFORK) != 0) {
    fail_link("mapping a page");
  }
  *static_cast<unsigned char*>(fork_page_.data) = 1;
}

void Link::start(const MachineChoice& choice) {
  std::array<int, 2> ends{-1, -1};
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends.data()) != 0) {
    fail_link("making a socket");
  }
  const Descriptor companions(ends[1]);
  socket_ = numbered_high(Descriptor(ends[0]));
  spawn_companion(companions.get(), choice);
}

void Link::greet() {
  Request hello;
  const std::array<int, 2> shared{queues_.get(), doorbell_.get()};
  Reply reply;
  std::vector<Descriptor> descriptors;
  if (!send_message(socket_.get(), &hello, sizeof(hello), shared) ||
      !wait_for(socket_.get(), POLLIN, kGreeting) ||
      !receive_message(socket_.get(), &reply, sizeof(reply), descriptors)) {
    throw Error(ErrorCode::kDeviceError, "The simulated device's companion did not answer.",
                "Check that " + companion_program() + " can be run.");
  }
  reply.error[sizeof(reply.error) - 1] = '\0';
  if (reply.error[0] != '\0' || descriptors.size() != 1) {
    throw Error(ErrorCode::kDeviceError, reply.error);
  }
  Descriptor file = numbered_high(std::move(descriptors[0]));
  machine_ = std::make_unique<Machine>(file.get(), reply.ticket);
  (void)file.take();  // the machine's
  companion_pid_ = reply.companion_pid;
}

Link::~Link() {
  const Descriptor companion(
      static_cast<int>(::syscall(SYS_pidfd_open, static_cast<pid_t>(companion_pid_), 0)));
  machine_.reset();
  socket_ = Descriptor();
  if (companion.get() >= 0) wait_for(companion.get(), POLLIN, kEnding);
}

bool Link::in_fork_child() const noexcept {
  return *static_cast<const unsigned char*>(fork_page_.data) == 0;
}

void Link::ring() noexcept {
  if (control_->sleeping.load() != 0 && control_->sleeping.exchange(0) != 0) {
    ::eventfd_write(doorbell_.get(), 1);
  }
}

void Link::request(const char* call, const Request& request, int descriptor) {
  Reply reply;
  std::vector<Descriptor> none;
  {
    const std::lock_guard lock(request_mutex_);
    const std::span<const int> descriptors(&descriptor, descriptor >= 0 ? 1 : 0);
    if (!send_message(socket_.get(), &request, sizeof(request), descriptors) ||
        !receive_message(socket_.get(), &reply, sizeof(reply), none)) {
      reply.set_error("device lost (the companion process has ended)");
    }
  }
  reply.error[sizeof(reply.error) - 1] = '\0';
  if (reply.error[0] == '\0') return;
  throw Error(ErrorCode::kDeviceError, std::string(call) + ": " + reply.error + ".");
}

bool Link::lost() const noexcept {
  pollfd end{socket_.get(), 0, 0};
  return ::poll(&end, 1, 0) > 0 && (end.revents & POLLHUP) != 0;
}

}  // namespace limbo::sim
