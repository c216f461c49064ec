#include "allocator/device/sim_companion.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>

#include "allocator/device/sim_channel.h"
#include "allocator/device/sim_machine.h"
#include "allocator/device/sim_worker.h"
#include "allocator/error.h"

namespace limbo::sim {

namespace {

using std::chrono::microseconds;
using std::chrono::nanoseconds;

// Looking for the client's end costs a system call: while busy, this often.
constexpr microseconds kCompanionLookInterval{200};
// After the last progress, how long to look again without sleeping.
constexpr microseconds kSpin{50};

// The intermediate process of a double fork ends here, so that the companion is nobody's child.
void detach_from_client() {
  const pid_t child = ::fork();
  if (child != 0) ::_exit(child > 0 ? 0 : 1);
  for (const int ignored : {SIGINT, SIGQUIT, SIGHUP, SIGTERM, SIGPIPE}) {
    std::signal(ignored, SIG_IGN);
  }
  if (::close_range(kCompanionSocket + 1, ~0U, 0) != 0) {
    for (int fd = kCompanionSocket + 1; fd < 4096; ++fd) ::close(fd);
  }
  if (::chdir("/") != 0) ::_exit(1);
}

void* map_shared(int fd, std::size_t size_bytes, int protection, const char* what) {
  void* const mapped = ::mmap(nullptr, size_bytes, protection, MAP_SHARED, fd, 0);
  if (mapped == MAP_FAILED) {
    throw Error(ErrorCode::kDeviceError, std::string("The simulated device's companion could not "
                                                     "map ") +
                                             what + ": " + std::strerror(errno) + ".");
  }
  return mapped;
}

class Companion {
 public:
  Companion(std::string path, const MachineShape& shape) : path_(std::move(path)), shape_(shape) {}

  int run();

 private:
  bool greet();
  void serve();
  bool answer_request();
  void register_memory(const Request& request, const Descriptor& descriptor);
  [[nodiscard]] nanoseconds sleep_time(Clock::duration since_progress) const;
  bool sleep(nanoseconds time);
  static bool client_gone(void* companion);

  std::string path_;
  MachineShape shape_;
  Descriptor doorbell_;
  Descriptor client_pidfd_;
  Control* control_ = nullptr;
  std::unique_ptr<Machine> machine_;
  std::unique_ptr<Worker> worker_;
  std::vector<Descriptor> held_;
};

int Companion::run() {
  if (!greet()) return 1;
  serve();
  // The work has stopped: only now may the memory go, and what tells others that it has stopped.
  worker_.reset();
  machine_->leave();
  return 0;
}

bool Companion::greet() {
  Request request;
  std::vector<Descriptor> descriptors;
  if (!receive_message(kCompanionSocket, &request, sizeof(request), descriptors) ||
      request.kind != RequestKind::kHello || descriptors.size() != 2) {
    return false;
  }
  Reply reply;
  std::array<int, 1> machine_file{-1};
  try {
    ucred client{};
    socklen_t size = sizeof(client);
    ::getsockopt(kCompanionSocket, SOL_SOCKET, SO_PEERCRED, &client, &size);
    client_pidfd_ = Descriptor(static_cast<int>(::syscall(SYS_pidfd_open, client.pid, 0)));
    doorbell_ = std::move(descriptors[1]);
    control_ = static_cast<Control*>(
        map_shared(descriptors[0].get(), kControlBytes, PROT_READ | PROT_WRITE, "the queues"));
    machine_ = Machine::join(path_, shape_, client.pid);
    auto* const memory = static_cast<std::byte*>(map_shared(
        machine_->fd(), machine_->total_bytes(), PROT_READ | PROT_WRITE, "the machine's memory"));
    worker_ = std::make_unique<Worker>(*control_, memory, &Companion::client_gone, this);
    reply.ticket = machine_->ticket();
    reply.companion_pid = ::getpid();
    machine_file[0] = machine_->fd();
  } catch (const std::exception& error) {
    if (machine_ != nullptr) machine_->leave();
    machine_.reset();
    reply.set_error(error.what());
  }
  const std::span<const int> files(machine_file.data(), machine_ != nullptr ? 1 : 0);
  if (send_message(kCompanionSocket, &reply, sizeof(reply), files)) return machine_ != nullptr;
  if (machine_ != nullptr) machine_->leave();
  return false;
}

bool Companion::client_gone(void* companion) {
  const int pidfd = static_cast<Companion*>(companion)->client_pidfd_.get();
  if (pidfd < 0) return false;  // cannot be known here: such a hold ends with the socket
  pollfd poll{pidfd, POLLIN, 0};
  return ::poll(&poll, 1, 0) > 0;
}

// Until the client's end of the socket is closed by everybody.
void Companion::serve() {
  auto last_progress = Clock::now();
  auto last_look = last_progress;
  while (true) {
    const bool moved = worker_->step_all();
    const auto now = Clock::now();
    if (moved) last_progress = now;
    if (moved && now - last_look < kCompanionLookInterval) continue;
    last_look = now;
    if (!sleep(moved ? nanoseconds{0} : sleep_time(now - last_progress))) return;
  }
}

// Negative: until something comes. Waits are polled, for the word may be written by anyone; the
// longer nothing has moved, the less often.
nanoseconds Companion::sleep_time(Clock::duration since_progress) const {
  switch (worker_->activity()) {
    case Worker::Activity::kIdle:
      return nanoseconds{-1};
    case Worker::Activity::kWorking:
      return nanoseconds{0};
    case Worker::Activity::kWaiting:
      break;
  }
  if (since_progress < kSpin) return nanoseconds{0};
  if (since_progress < microseconds{5'000}) return microseconds{50};
  return since_progress < microseconds{1'000'000} ? microseconds{200} : microseconds{1'000};
}

// False when the client's end is closed.
bool Companion::sleep(nanoseconds time) {
  std::array<pollfd, 2> polled{pollfd{kCompanionSocket, POLLIN, 0},
                               pollfd{doorbell_.get(), POLLIN, 0}};
  if (time != nanoseconds{0}) {
    control_->sleeping.store(1);
    if (worker_->has_new_entries()) time = nanoseconds{0};
  }
  const timespec limit{time.count() / 1'000'000'000, time.count() % 1'000'000'000};
  const int ready =
      ::ppoll(polled.data(), polled.size(), time < nanoseconds{0} ? nullptr : &limit, nullptr);
  control_->sleeping.store(0);
  if (ready <= 0) return true;
  if (polled[1].revents != 0) {
    eventfd_t rings = 0;
    ::eventfd_read(doorbell_.get(), &rings);
  }
  if ((polled[0].revents & POLLIN) != 0) return answer_request();
  return (polled[0].revents & (POLLHUP | POLLERR)) == 0;
}

bool Companion::answer_request() {
  Request request;
  std::vector<Descriptor> descriptors;
  if (!receive_message(kCompanionSocket, &request, sizeof(request), descriptors)) return false;
  Reply reply;
  try {
    if (request.kind == RequestKind::kUnregister) {
      worker_->remove(request.id);
    } else if (descriptors.size() != 1) {
      reply.set_error("invalid argument (no descriptor)");
    } else if (request.kind == RequestKind::kRegister) {
      register_memory(request, descriptors[0]);
    } else if (request.kind == RequestKind::kHoldDescriptor) {
      held_.push_back(std::move(descriptors[0]));
    }
  } catch (const std::exception& error) {
    reply.set_error(error.what());
  }
  return send_message(kCompanionSocket, &reply, sizeof(reply), {});
}

void Companion::register_memory(const Request& request, const Descriptor& descriptor) {
  struct stat file {};
  if (::fstat(descriptor.get(), &file) != 0 ||
      static_cast<std::uint64_t>(file.st_size) < request.size_bytes) {
    throw Error(ErrorCode::kDeviceError, "invalid argument (the file is smaller than the memory)");
  }
  const bool writable = request.writable != 0;
  auto* const data = static_cast<std::byte*>(
      map_shared(descriptor.get(), request.size_bytes,
                 writable ? PROT_READ | PROT_WRITE : PROT_READ, "registered host memory"));
  worker_->add(request.id, {data, request.size_bytes, writable, false, {}});
}

}  // namespace

int run_companion(int argc, char** argv) {
  if (argc != 4) return 2;
  detach_from_client();
  MachineShape shape;
  shape.devices = static_cast<std::uint32_t>(std::strtoul(argv[2], nullptr, 10));
  shape.memory_bytes = std::strtoull(argv[3], nullptr, 10);
  return Companion(argv[1], shape).run();
}

}  // namespace limbo::sim
