#include "tests/processes/peer_forks.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <stdexcept>

#include "allocator/error.h"
#include "ipc/fail_point_hooks.h"
#include "ipc/owned_fd.h"
#include "ipc/sharing.h"

namespace limbo::testing {

pid_t fork_idle_child() {
  const pid_t child = ::fork();
  if (child == 0) {
    while (true) ::pause();
  }
  return child;
}

pid_t spawn_idle_program() {
  pid_t child = 0;
  char name[] = "sleep";
  char time[] = "1000";
  char* arguments[] = {name, time, nullptr};
  if (::posix_spawn(&child, "/bin/sleep", nullptr, nullptr, arguments, environ) != 0) {
    throw std::runtime_error("posix_spawn");
  }
  return child;
}

std::string use_in_fork_child(int generations, const std::function<void()>& drop_all) {
  int pipe_ends[2];
  if (::pipe(pipe_ends) != 0) throw std::runtime_error("pipe");
  const pid_t child = ::fork();
  if (child == 0) {
    for (int generation = 1; generation < generations; ++generation) {
      const pid_t grandchild = ::fork();
      if (grandchild != 0) ::_exit(::waitpid(grandchild, nullptr, 0) == grandchild ? 0 : 1);
    }
    std::string met = "none";
    try {
      (void)process_sharing().stats();
    } catch (const Error& failure) {
      met = error_code_name(failure.code());
    }
    drop_all();  // releases of the parent's blocks: nothing happens
    (void)!::write(pipe_ends[1], met.data(), met.size());
    ::_exit(0);
  }
  ::close(pipe_ends[1]);
  char text[64] = {};
  const ssize_t length = ::read(pipe_ends[0], text, sizeof(text) - 1);
  ::close(pipe_ends[0]);
  ::waitpid(child, nullptr, 0);
  return {text, static_cast<std::size_t>(std::max<ssize_t>(length, 0))};
}

void open_driver_file(int number) {
  const OwnedFd file(::memfd_create("limbo-sim-lower", MFD_CLOEXEC));
  ::dup3(file.get(), number, O_CLOEXEC);
}

void open_driver_file_at(const std::string& fail_point, int number) {
  at_fail_point(fail_point, [number] { open_driver_file(number); });
}

void cut_connections() {
  for (int fd = 3; fd < 1024; ++fd) {
    // Both ends have the name of the listener on one side.
    sockaddr_un own{};
    sockaddr_un other{};
    socklen_t length = sizeof(own) - 1;
    if (::getsockname(fd, reinterpret_cast<sockaddr*>(&own), &length) != 0) continue;
    length = sizeof(other) - 1;
    if (::getpeername(fd, reinterpret_cast<sockaddr*>(&other), &length) != 0) continue;
    if (own.sun_family != AF_UNIX) continue;
    const std::string names = std::string(own.sun_path) + " " + other.sun_path;
    if (names.find(".sock") != std::string::npos) ::shutdown(fd, SHUT_RDWR);
  }
}

}  // namespace limbo::testing
