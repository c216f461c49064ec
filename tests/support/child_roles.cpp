#include "tests/support/child_roles.h"

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <map>

#include "tests/support/child_process.h"

namespace limbo::testing {
namespace {

// A child whose parent was killed must not live for ever.
constexpr unsigned kLifetimeSeconds = 600;

// A function's static, since roles register themselves while statics are being made.
std::map<std::string, ChildRole, std::less<>>& roles() {
  static std::map<std::string, ChildRole, std::less<>> all;
  return all;
}

// The message pipes move away from 0 and 1, so that what a library prints is captured with
// standard error and never taken for a message.
int moved_away(int fd) {
  const int moved = fcntl(fd, F_DUPFD_CLOEXEC, 3);
  if (moved < 0) throw std::runtime_error(std::string("fcntl F_DUPFD: ") + std::strerror(errno));
  return moved;
}

int run(const std::string& name, ChildRole role, std::vector<std::string> arguments) {
  alarm(kLifetimeSeconds);
  const int in_fd = moved_away(0);
  const int out_fd = moved_away(1);
  const int null = open("/dev/null", O_RDONLY | O_CLOEXEC);
  dup2(null, 0);
  close(null);
  dup2(2, 1);
  ChildContext context(name, std::move(arguments), in_fd, out_fd);
  try {
    return role(context);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "role %s: %s\n", name.c_str(), error.what());
  }
  return 1;
}

}  // namespace

ChildRoleRegistration::ChildRoleRegistration(std::string_view name, ChildRole role) {
  if (!roles().emplace(name, role).second) {
    std::fprintf(stderr, "two child roles are named %s\n", std::string(name).c_str());
    std::abort();
  }
}

std::optional<int> run_child_role(int argc, char** argv) {
  // Whoever writes to a dead peer is to meet an error, not a signal.
  signal(SIGPIPE, SIG_IGN);
  if (argc < 3 || std::string_view(argv[1]) != kChildRoleFlag) return std::nullopt;
  const auto found = roles().find(std::string_view(argv[2]));
  if (found == roles().end()) {
    std::fprintf(stderr, "no child role is named %s; there are:", argv[2]);
    for (const auto& [name, role] : roles()) std::fprintf(stderr, " %s", name.c_str());
    std::fprintf(stderr, "\n");
    return 2;
  }
  return run(found->first, found->second, std::vector<std::string>(argv + 3, argv + argc));
}

ChildContext::ChildContext(std::string role, std::vector<std::string> arguments, int in_fd,
                           int out_fd)
    : role_(std::move(role)), arguments_(std::move(arguments)), in_fd_(in_fd), out_fd_(out_fd) {}

const std::string& ChildContext::argument(std::size_t index) const {
  if (index >= arguments_.size()) {
    throw std::out_of_range("argument " + std::to_string(index) + " was not given");
  }
  return arguments_[index];
}

void ChildContext::send(std::string_view line) {
  if (!write_line(out_fd_, line)) throw std::runtime_error("the parent no longer listens");
}

void ChildContext::send_bytes(std::span<const std::byte> bytes) {
  send(to_hex(bytes));
}

std::optional<std::string> ChildContext::try_receive() {
  for (;;) {
    if (std::optional<std::string> line = take_line(buffer_)) return line;
    if (!read_more(in_fd_, buffer_)) return std::nullopt;
  }
}

std::string ChildContext::receive() {
  std::optional<std::string> line = try_receive();
  if (!line) throw std::runtime_error("the parent has closed its end where a line was expected");
  return *std::move(line);
}

std::vector<std::byte> ChildContext::receive_bytes() {
  return from_hex(receive());
}

void ChildContext::park() {
  while (try_receive()) {
  }
}

std::optional<std::string> take_line(std::string& buffer) {
  const std::size_t end = buffer.find('\n');
  if (end == std::string::npos) return std::nullopt;
  std::string line = buffer.substr(0, end);
  buffer.erase(0, end + 1);
  return line;
}

bool read_more(int fd, std::string& buffer) {
  char chunk[4096];
  for (;;) {
    const ssize_t got = read(fd, chunk, sizeof(chunk));
    if (got > 0) {
      buffer.append(chunk, static_cast<std::size_t>(got));
      return true;
    }
    if (got == 0 || errno != EINTR) return false;
  }
}

bool write_line(int fd, std::string_view line) {
  std::string text(line);
  text.push_back('\n');
  std::size_t done = 0;
  while (done < text.size()) {
    const ssize_t put = write(fd, text.data() + done, text.size() - done);
    if (put > 0) {
      done += static_cast<std::size_t>(put);
    } else if (put < 0 && errno != EINTR) {
      return false;
    }
  }
  return true;
}

}  // namespace limbo::testing
