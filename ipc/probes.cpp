#include "ipc/probes.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstring>
#include <functional>

#include "allocator/error.h"
#include "ipc/channel_socket.h"
#include "ipc/lease_watch.h"
#include "ipc/life_line.h"
#include "ipc/made_stream.h"
#include "ipc/owned_fd.h"
#include "ipc/packet.h"
#include "ipc/runtime_directory.h"
#include "ipc/shared_memory.h"

namespace limbo {
namespace {

using Clock = std::chrono::steady_clock;

// How long a death may take to be seen; it takes microseconds.
constexpr std::chrono::milliseconds kSeenWithin{2000};
constexpr std::size_t kPage = 4096;

// What to do where the system has no room for another socket, pipe or process.
const char* const kMakeRoom =
    "Raise the limits on open files and processes (ulimit -n, ulimit -u; docker run --ulimit)";
// ... and where it does not do what Linux does.
const char* const kUseLinux = "Use Linux itself, without an emulation of its system calls";

std::string system_words(const std::string& call) {
  return call + ": " + std::strerror(errno);
}

std::string time_since(Clock::time_point start) {
  const auto passed = std::chrono::duration_cast<std::chrono::microseconds>(Clock::now() - start);
  const auto count = passed.count();
  return count < 10'000 ? std::to_string(count) + " us" : std::to_string(count / 1000) + " ms";
}

// An error's text: its last sentence is what to do.
Probe refused(const Error& error) {
  const std::string text = error.what();
  const std::size_t end = text.rfind(". ");
  if (end == std::string::npos) return {.works = false, .seen = text, .advice = kMakeRoom};
  return {.works = false, .seen = text.substr(0, end + 1), .advice = text.substr(end + 2)};
}

// A fork child that runs `body` (system calls only) and then waits to be killed.
class Child {
 public:
  explicit Child(const std::function<void()>& body) : pid_(::fork()) {
    if (pid_ != 0) return;
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    body();
    for (;;) ::pause();
  }
  ~Child() { kill(); }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  [[nodiscard]] bool started() const noexcept { return pid_ > 0; }
  void kill() noexcept {
    if (pid_ <= 0) return;
    ::kill(pid_, SIGKILL);
    while (::waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
    }
    pid_ = -1;
  }
  void kill_unreaped() const noexcept { ::kill(pid_, SIGKILL); }

 private:
  pid_t pid_;
};

}  // namespace

Probe probe_runtime_directory() {
  try {
    const RuntimeDirectory directory = RuntimeDirectory::open_own();
    const std::string name = "doctor-" + std::to_string(::getpid());
    const OwnedFd listener = listen_in(directory, name);
    const sockaddr_un address = directory.address(name);
    const OwnedFd client(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
    const bool connected =
        client.valid() &&
        ::connect(client.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0;
    const std::string words = connected ? std::string() : system_words("connect");
    ::unlinkat(directory.fd(), name.c_str(), 0);
    if (connected) return {.works = true, .seen = directory.path(), .advice = {}};
    return {.works = false,
            .seen = directory.path() + ": " + words,
            .advice = "Set LIMBO_RUNTIME_DIR to a directory on a local file system"};
  } catch (const Error& error) {
    return refused(error);
  }
}

Probe probe_memfd_seals() {
  try {
    const SharedMemory made = SharedMemory::create("limbo-probe", kPage, ReceiverMay::kRead);
    const SharedMemory read = SharedMemory::map_received(
        "limbo-probe", ::fcntl(made.fd(), F_DUPFD_CLOEXEC, 0), kPage, ReceiverMay::kRead);
    *static_cast<std::uint64_t*>(made.data()) = 7;
    std::string wrong;
    if (*static_cast<const std::uint64_t*>(read.data()) != 7)
      wrong = "what was written is not read";
    void* writable = ::mmap(nullptr, kPage, PROT_READ | PROT_WRITE, MAP_SHARED, read.fd(), 0);
    if (writable != MAP_FAILED) {
      ::munmap(writable, kPage);
      wrong = "a receiver can map it writable";
    }
    if (::ftruncate(read.fd(), 0) == 0) wrong = "a receiver can change its size";
    if (::fcntl(read.fd(), F_ADD_SEALS, F_SEAL_WRITE) == 0) wrong = "a receiver can add a seal";
    if (!wrong.empty()) {
      return {.works = false,
              .seen = wrong,
              .advice =
                  "Use Linux 5.1 or newer, without an "
                  "emulation of its system calls"};
    }
    return {.works = true, .seen = "sealed memory stays as it is made", .advice = {}};
  } catch (const Error& error) {
    Probe probe = refused(error);
    probe.advice = "Use Linux 5.1 or newer; allow memfd_create and F_ADD_SEALS in the container";
    return probe;
  }
}

Probe probe_pidfd() {
  const std::string advice = "Allow pidfd_open in the container, or use Linux 6.5 or newer";
  // Bound to a name of the kernel's choice.
  const OwnedFd listener(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  socklen_t length = sizeof(address);
  if (!listener.valid() ||
      ::bind(listener.get(), reinterpret_cast<sockaddr*>(&address), sizeof(sa_family_t)) != 0 ||
      ::listen(listener.get(), 1) != 0 ||
      ::getsockname(listener.get(), reinterpret_cast<sockaddr*>(&address), &length) != 0) {
    return {.works = false, .seen = system_words("a Unix socket"), .advice = kMakeRoom};
  }
  Child child([&] {
    const int client = ::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (::connect(client, reinterpret_cast<const sockaddr*>(&address), length) != 0) ::_exit(1);
  });
  if (!child.started()) return {.works = false, .seen = system_words("fork"), .advice = kMakeRoom};
  pollfd waiting{.fd = listener.get(), .events = POLLIN, .revents = 0};
  if (::poll(&waiting, 1, static_cast<int>(kSeenWithin.count())) != 1) {
    return {.works = false, .seen = "a child process could not connect", .advice = kUseLinux};
  }
  const OwnedFd connection(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
  const PeerIdentity peer = identify_peer(connection.get());
  if (!peer.pidfd.valid()) {
    return {.works = false, .seen = "there is none for a connected process", .advice = advice};
  }
  if (is_readable(peer.pidfd.get())) {
    return {.works = false, .seen = "it says that a living process has ended", .advice = advice};
  }
  const auto killed = Clock::now();
  child.kill_unreaped();
  if (!ends_within(peer.pidfd.get(), kSeenWithin)) {
    return {.works = false, .seen = "the end of a process is not seen by it", .advice = advice};
  }
  return {.works = true,
          .seen = "the end of a process is seen " + time_since(killed) + " after its kill",
          .advice = {}};
}

Probe probe_life_line() {
  const life_line::Ends ends = life_line::make_ends();
  if (ends.held < 0) return {.works = false, .seen = system_words("pipe2"), .advice = kMakeRoom};
  OwnedFd held(ends.held);
  const OwnedFd watched(ends.far);
  Child child([] {});  // holds what it inherits
  if (!child.started()) return {.works = false, .seen = system_words("fork"), .advice = kMakeRoom};
  held.reset();
  if (is_life_line_closed(watched.get())) {
    return {
        .works = false, .seen = "a fork child does not hold what it inherits", .advice = kUseLinux};
  }
  const auto killed = Clock::now();
  child.kill_unreaped();
  if (!ends_within(watched.get(), kSeenWithin)) {
    return {.works = false, .seen = "its end is not seen", .advice = kUseLinux};
  }
  Probe probe{.works = true,
              .seen = "its end is seen " + time_since(killed) + " after a kill",
              .advice = {}};
  const std::uint32_t flags = life_line::flags();
  if ((flags & life_line::kLate) != 0) {
    probe.seen +=
        "; this process's was made after CUDA was started, so its memory comes back after "
        "2 s of grace";
    probe.advice = "Import torch_limbo (or load the library) before CUDA is started";
  }
  return probe;
}

Probe probe_stream_memory_operations(Device& device, int index) {
  const std::string advice = "Use a driver of CUDA 12 or newer, and a GPU that has them";
  try {
    if (!device.has_stream_memory_operations(index)) {
      return {.works = false, .seen = "the GPU or its driver has none", .advice = advice};
    }
    const SharedMemory memory = SharedMemory::create("limbo-probe", kPage, ReceiverMay::kWrite);
    auto* words = static_cast<std::uint64_t*>(memory.data());
    const WordWrite first{&words[0], 7};
    const WordWrite second{&words[1], 9};
    std::string failure;
    {
      const MadeStream made(device, index);
      const StreamRef stream = made.get();
      device.register_host_memory(index, memory.host_memory(kPage));
      try {
        device.write_words(stream, {&first, 1});
        device.wait_word(stream, &words[0], 7);
        device.write_words(stream, {&second, 1});
        device.synchronize_stream(stream);
      } catch (const Error& error) {
        failure = error.what();
      }
    }
    device.unregister_host_memory(memory.data());
    if (!failure.empty()) return {.works = false, .seen = failure, .advice = advice};
    const bool landed =
        std::atomic_ref(words[0]).load() == 7 && std::atomic_ref(words[1]).load() == 9;
    if (!landed) {
      return {.works = false, .seen = "what a stream wrote was not there", .advice = advice};
    }
    return {.works = true, .seen = "a stream wrote, waited and wrote", .advice = {}};
  } catch (const Error& error) {
    return {.works = false, .seen = error.what(), .advice = advice};
  }
}

}  // namespace limbo
