#include "tests/support/child_process.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <map>

#include "tests/support/child_roles.h"

namespace limbo::testing {
namespace {

using Clock = std::chrono::steady_clock;

[[noreturn]] void throw_errno(const std::string& call) {
  throw std::runtime_error(call + ": " + std::strerror(errno));
}

struct Pipe {
  int read_end = -1;
  int write_end = -1;
};

Pipe make_pipe() {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) throw_errno("pipe2");
  return {ends[0], ends[1]};
}

void close_if_open(int& fd) noexcept {
  if (fd >= 0) close(fd);
  fd = -1;
}

std::vector<std::string> environment_with(const ChildOptions& options) {
  std::map<std::string, std::string> variables;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view text(*entry);
    const std::size_t equals = text.find('=');
    if (equals == std::string_view::npos) continue;
    variables[std::string(text.substr(0, equals))] = text.substr(equals + 1);
  }
  for (const auto& [name, value] : options.environment) {
    if (value) {
      variables[name] = *value;
    } else {
      variables.erase(name);
    }
  }
  std::vector<std::string> result;
  for (const auto& [name, value] : variables) result.push_back(name + "=" + value);
  return result;
}

std::vector<char*> pointers(std::vector<std::string>& strings) {
  std::vector<char*> result;
  for (std::string& text : strings) result.push_back(text.data());
  result.push_back(nullptr);
  return result;
}

// Milliseconds until `deadline` for poll, rounded up; 0 when it is over.
int milliseconds_until(Clock::time_point deadline) {
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()).count();
  return left > 0 ? static_cast<int>(left) : 0;
}

// True when `fd` became readable (or reached its end) before the deadline.
bool poll_readable(int fd, Clock::time_point deadline) {
  for (;;) {
    pollfd entry{fd, POLLIN, 0};
    const int ready = poll(&entry, 1, milliseconds_until(deadline));
    if (ready > 0) return true;
    if (ready == 0) return false;
    if (errno != EINTR) throw_errno("poll");
  }
}

ChildEnd decoded(const siginfo_t& info) {
  return {info.si_code != CLD_EXITED, info.si_status};
}

}  // namespace

ChildProcess::ChildProcess(const std::string& role, const std::vector<std::string>& arguments,
                           const ChildOptions& options)
    : role_(role) {
  Pipe input = make_pipe();
  Pipe output = make_pipe();
  output_fd_ = memfd_create("child-output", MFD_CLOEXEC);
  if (output_fd_ < 0) throw_errno("memfd_create");

  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, input.read_end, 0);
  posix_spawn_file_actions_adddup2(&actions, output.write_end, 1);
  posix_spawn_file_actions_adddup2(&actions, output_fd_, 2);

  std::vector<std::string> words{"/proc/self/exe", kChildRoleFlag, role};
  words.insert(words.end(), arguments.begin(), arguments.end());
  std::vector<std::string> variables = environment_with(options);
  char path[4096];
  const ssize_t length = readlink("/proc/self/exe", path, sizeof(path) - 1);
  if (length < 0) throw_errno("readlink /proc/self/exe");
  path[length] = '\0';
  words[0] = path;
  words.insert(words.begin(), options.wrapper.begin(), options.wrapper.end());
  const int error = posix_spawn(&pid_, words[0].c_str(), &actions, nullptr, pointers(words).data(),
                                pointers(variables).data());
  posix_spawn_file_actions_destroy(&actions);
  close(input.read_end);
  close(output.write_end);
  to_child_ = input.write_end;
  from_child_ = output.read_end;
  if (error != 0) {
    pid_ = -1;
    close_if_open(to_child_);
    close_if_open(from_child_);
    close_if_open(output_fd_);
    throw std::runtime_error(std::string("posix_spawn of ") + path + ": " + std::strerror(error));
  }
  pidfd_ = static_cast<int>(syscall(SYS_pidfd_open, pid_, 0U));
  if (pidfd_ < 0) {
    const int saved = errno;
    kill();
    errno = saved;
    throw_errno("pidfd_open");
  }
}

ChildProcess::~ChildProcess() {
  if (pid_ > 0 && !end_) kill();
  close_if_open(to_child_);
  close_if_open(from_child_);
  close_if_open(output_fd_);
  close_if_open(pidfd_);
}

void ChildProcess::send(std::string_view line) {
  if (!write_line(to_child_, line)) fail("could not be sent \"" + std::string(line) + "\"");
}

void ChildProcess::send_bytes(std::span<const std::byte> bytes) {
  send(to_hex(bytes));
}

std::string ChildProcess::receive(std::chrono::milliseconds at_most) {
  const auto deadline = Clock::now() + at_most;
  for (;;) {
    if (std::optional<std::string> line = take_line(buffer_)) return *std::move(line);
    if (!poll_readable(from_child_, deadline)) {
      fail("sent no line within " + std::to_string(at_most.count()) + " ms");
    }
    if (!read_more(from_child_, buffer_)) {
      if (!end_ && poll_readable(pidfd_, Clock::now() + std::chrono::seconds(5))) wait();
      fail("ended where a line was expected");
    }
  }
}

std::vector<std::byte> ChildProcess::receive_bytes(std::chrono::milliseconds at_most) {
  const std::string line = receive(at_most);
  try {
    return from_hex(line);
  } catch (const std::invalid_argument&) {
    fail("sent \"" + line + "\" where bytes were expected");
  }
}

void ChildProcess::expect(std::string_view line, std::chrono::milliseconds at_most) {
  const std::string received = receive(at_most);
  if (received != line) {
    fail("sent \"" + received + "\" where \"" + std::string(line) + "\" was expected");
  }
}

void ChildProcess::close_input() {
  close_if_open(to_child_);
}

void ChildProcess::stop() {
  if (::kill(pid_, SIGSTOP) != 0) throw_errno("kill SIGSTOP");
  siginfo_t info{};
  if (waitid(P_PID, static_cast<id_t>(pid_), &info, WSTOPPED | WEXITED | WNOWAIT) != 0) {
    throw_errno("waitid");
  }
  if (info.si_code != CLD_STOPPED) fail("ended where it was to be stopped");
}

void ChildProcess::resume() {
  if (::kill(pid_, SIGCONT) != 0) throw_errno("kill SIGCONT");
}

void ChildProcess::kill_unreaped() {
  if (!end_ && ::kill(pid_, SIGKILL) != 0) throw_errno("kill SIGKILL");
}

ChildEnd ChildProcess::kill() {
  if (end_) return *end_;
  kill_unreaped();
  siginfo_t info{};
  while (waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED) != 0) {
    if (errno != EINTR) throw_errno("waitid");
  }
  end_ = decoded(info);
  return *end_;
}

ChildEnd ChildProcess::wait(std::chrono::milliseconds at_most) {
  if (end_) return *end_;
  if (!poll_readable(pidfd_, Clock::now() + at_most)) {
    fail("did not end within " + std::to_string(at_most.count()) + " ms");
  }
  siginfo_t info{};
  while (waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED) != 0) {
    if (errno != EINTR) throw_errno("waitid");
  }
  end_ = decoded(info);
  return *end_;
}

void ChildProcess::finish(std::chrono::milliseconds at_most) {
  if (!wait(at_most).success()) fail("did not end well");
}

bool ChildProcess::running() {
  return !end_ && !poll_readable(pidfd_, Clock::now());
}

std::string ChildProcess::output() const {
  std::string text;
  char chunk[4096];
  off_t offset = 0;
  for (;;) {
    const ssize_t got = pread(output_fd_, chunk, sizeof(chunk), offset);
    if (got <= 0) return text;
    text.append(chunk, static_cast<std::size_t>(got));
    offset += got;
  }
}

void ChildProcess::fail(const std::string& what) {
  std::string text = "child \"" + role_ + "\" (pid " + std::to_string(pid_) + ") " + what;
  if (end_) {
    text += end_->signalled ? "; killed by signal " : "; exit status ";
    text += std::to_string(end_->code);
  } else {
    text += "; it still runs";
  }
  const std::string written = output();
  text += written.empty() ? "; it wrote nothing." : "; it wrote:\n" + written;
  throw ChildFailed(text);
}

std::string to_hex(std::span<const std::byte> bytes) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  text.reserve(bytes.size() * 2);
  for (const std::byte byte : bytes) {
    const auto value = std::to_integer<unsigned>(byte);
    text.push_back(kDigits[value >> 4]);
    text.push_back(kDigits[value & 15]);
  }
  return text;
}

std::vector<std::byte> from_hex(std::string_view text) {
  const auto digit = [&](char c) -> unsigned {
    if (c >= '0' && c <= '9') return static_cast<unsigned>(c - '0');
    if (c >= 'a' && c <= 'f') return static_cast<unsigned>(c - 'a') + 10;
    throw std::invalid_argument("not hexadecimal: " + std::string(text));
  };
  if (text.size() % 2 != 0) throw std::invalid_argument("odd number of hexadecimal digits");
  std::vector<std::byte> bytes;
  for (std::size_t i = 0; i < text.size(); i += 2) {
    bytes.push_back(static_cast<std::byte>(digit(text[i]) << 4 | digit(text[i + 1])));
  }
  return bytes;
}

}  // namespace limbo::testing
