#include "tests/processes/peer_forks.h"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <stdexcept>
#include <thread>

#include "allocator/error.h"
#include "ipc/fail_point_hooks.h"
#include "ipc/owned_fd.h"
#include "ipc/sharing.h"
#include "tests/support/eventually.h"

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

namespace {

// Every use of sharing that there is.
std::vector<std::function<void()>> uses_of_sharing() {
  Sharing& sharing = process_sharing();
  return {
      [&] { (void)process_allocator(); },
      [&] { (void)sharing.share(&sharing, 1, {}, {}); },
      [&] { (void)sharing.receive({}, {}); },
      [&] { sharing.withdraw({}); },
      [&] { (void)sharing.collect(); },
      [&] { (void)sharing.reap(false); },
      [&] { (void)sharing.holders(); },
      [&] { (void)sharing.stats(); },
      [&] { (void)sharing.keep_for_graph({}); },
      [&] { (void)sharing.drain(std::chrono::milliseconds(0)); },
      [&] { (void)sharing.incarnation(); },
      [&] { sharing.publish("name", &sharing, 1, {}, {}); },
      [&] { (void)sharing.unpublish("name"); },
      [&] { (void)sharing.acquire("name"); },
      [&] { (void)sharing.names(); },
      [&] { (void)sharing.processes(); },
      [&] { (void)sharing.holders_of({}); },
      [&] { (void)sharing.published_by({}); },
      [&] { (void)sharing.reap_in({}, false); },
  };
}

std::string code_of(const std::function<void()>& use) {
  try {
    use();
    return "none";
  } catch (const Error& failure) {
    return std::string(error_code_name(failure.code()));
  }
}

std::string met_by(const std::vector<std::function<void()>>& uses) {
  std::string all;
  bool same = true;
  std::string code;
  for (const auto& use : uses) {
    const std::string met = code_of(use);
    same = same && (code.empty() || code == met);
    code = met;
    all += (all.empty() ? "" : " ") + met;
  }
  return same ? code : all;
}

}  // namespace

std::string use_in_fork_child(int generations, const std::vector<std::function<void()>>& uses,
                              const std::function<void()>& drop_all) {
  int pipe_ends[2];
  if (::pipe(pipe_ends) != 0) throw std::runtime_error("pipe");
  const pid_t child = ::fork();
  if (child == 0) {
    for (int generation = 1; generation < generations; ++generation) {
      const pid_t grandchild = ::fork();
      if (grandchild != 0) ::_exit(::waitpid(grandchild, nullptr, 0) == grandchild ? 0 : 1);
    }
    std::vector<std::function<void()>> all = uses_of_sharing();
    all.insert(all.end(), uses.begin(), uses.end());
    const std::string met = met_by(all);
    drop_all();  // releases of the parent's blocks: nothing happens
    (void)!::write(pipe_ends[1], met.data(), met.size());
    ::_exit(0);
  }
  ::close(pipe_ends[1]);
  char text[1024] = {};
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

std::string drop_in_fork_children(int children, const Bytes& message,
                                  const std::function<void()>& drop_all) {
  std::atomic<bool> enough{false};
  std::vector<std::thread> threads;
  for (int thread = 0; thread < 2; ++thread) {
    threads.emplace_back([&] {
      while (!enough) (void)process_sharing().receive(message, {});
    });
  }
  int ended_well = 0;
  for (int forked = 0; forked < children; ++forked) {
    const pid_t child = ::fork();
    if (child == 0) {
      drop_all();
      ::_exit(0);
    }
    int status = -1;
    const auto ended = [&] { return ::waitpid(child, &status, WNOHANG) == child; };
    if (!eventually(ended, std::chrono::seconds(5))) {
      ::kill(child, SIGKILL);
      ::waitpid(child, nullptr, 0);
      break;
    }
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0) ++ended_well;
  }
  enough = true;
  for (std::thread& thread : threads) thread.join();
  return std::to_string(ended_well);
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
