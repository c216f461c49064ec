// Other processes for tests: a child is this very executable, started anew under a role.
//
// Any test file defines roles with LIMBO_CHILD_ROLE(name) { ... return 0; } and starts them with
// ChildProcess("name", {arguments}). Parent and child exchange lines over pipes; the child's
// standard output and error are captured and shown when something goes wrong. Children are started
// by posix_spawn and exec: nothing but the environment and three descriptors crosses over.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstddef>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace limbo::testing {

// How long a test waits for what must happen; far longer than it takes, so that it never fails on a
// busy machine.
inline constexpr std::chrono::milliseconds kPatience{30'000};

// ---- the child's side ---------------------------------------------------------------------------

class ChildContext {
 public:
  ChildContext(std::string role, std::vector<std::string> arguments, int in_fd, int out_fd);

  [[nodiscard]] const std::string& role() const noexcept { return role_; }
  [[nodiscard]] const std::vector<std::string>& arguments() const noexcept { return arguments_; }
  // Throws std::out_of_range with the role's name when there are fewer.
  [[nodiscard]] const std::string& argument(std::size_t index) const;

  // One line to the parent, without its newline.
  void send(std::string_view line);
  void send_bytes(std::span<const std::byte> bytes);  // as hexadecimal digits

  // The parent's next line; nothing when the parent has closed its end or is dead.
  [[nodiscard]] std::optional<std::string> try_receive();
  // The same; throws when there is none.
  [[nodiscard]] std::string receive();
  [[nodiscard]] std::vector<std::byte> receive_bytes();

  // Waits to be killed, or for the parent's end of the pipe to close.
  void park();

 private:
  std::string role_;
  std::vector<std::string> arguments_;
  int in_fd_;
  int out_fd_;
  std::string buffer_;
};

using ChildRole = int (*)(ChildContext&);

struct ChildRoleRegistration {
  ChildRoleRegistration(std::string_view name, ChildRole role);
};

#define LIMBO_CHILD_ROLE(name)                                                                    \
  static int limbo_child_role_##name(::limbo::testing::ChildContext& child);                      \
  [[maybe_unused]] static const ::limbo::testing::ChildRoleRegistration limbo_child_entry_##name( \
      #name, &limbo_child_role_##name);                                                           \
  static int limbo_child_role_##name([[maybe_unused]] ::limbo::testing::ChildContext& child)

// The first thing that a `main` calls: when the arguments say `--child-role NAME ...`, runs the
// role and returns its exit status (1 after an exception, whose text goes to standard error); else
// nothing.
[[nodiscard]] std::optional<int> run_child_role(int argc, char** argv);

// ---- the parent's side --------------------------------------------------------------------------

// A child did not do what the test waited for; the text has its end, its output and its errors.
class ChildFailed : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

struct ChildOptions {
  // Added to this process's environment, or replacing it; nullopt removes.
  std::vector<std::pair<std::string, std::optional<std::string>>> environment;
  // A program and its arguments that is started instead, is given the child's command line behind
  // them, and must become it by exec ("/bin/sh", "-c", "...; exec \"$0\" \"$@\"").
  std::vector<std::string> wrapper{};
};

struct ChildEnd {
  bool signalled = false;
  int code = 0;  // the exit status, or the signal's number

  [[nodiscard]] bool success() const noexcept { return !signalled && code == 0; }
};

class ChildProcess {
 public:
  explicit ChildProcess(const std::string& role, const std::vector<std::string>& arguments = {},
                        const ChildOptions& options = {});
  // Kills the child if it still runs.
  ~ChildProcess();
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;

  [[nodiscard]] pid_t pid() const noexcept { return pid_; }

  void send(std::string_view line);
  void send_bytes(std::span<const std::byte> bytes);

  // The child's next line. Throws ChildFailed at its end or after `at_most`.
  [[nodiscard]] std::string receive(std::chrono::milliseconds at_most = kPatience);
  [[nodiscard]] std::vector<std::byte> receive_bytes(std::chrono::milliseconds at_most = kPatience);
  // Receives a line and throws ChildFailed when it is another.
  void expect(std::string_view line, std::chrono::milliseconds at_most = kPatience);

  void close_input();    // what the child's receive meets as the end
  void stop();           // SIGSTOP; returns when it has stopped
  void resume();         // SIGCONT
  ChildEnd kill();       // SIGKILL; returns when it has been reaped
  void kill_unreaped();  // SIGKILL; the child stays a zombie until wait

  // Waits for its end; throws ChildFailed after `at_most`.
  ChildEnd wait(std::chrono::milliseconds at_most = kPatience);
  // Waits for an exit with status 0; throws ChildFailed on any other end.
  void finish(std::chrono::milliseconds at_most = kPatience);

  [[nodiscard]] bool running();

  // What the child has written to standard output and error by now.
  [[nodiscard]] std::string output() const;

 private:
  [[noreturn]] void fail(const std::string& what);

  std::string role_;
  pid_t pid_ = -1;
  int pidfd_ = -1;
  int to_child_ = -1;
  int from_child_ = -1;
  int output_fd_ = -1;  // a memfd
  std::string buffer_;
  std::optional<ChildEnd> end_;
};

// ---- small helpers ------------------------------------------------------------------------------

[[nodiscard]] std::string to_hex(std::span<const std::byte> bytes);
// Throws std::invalid_argument for anything but an even number of hexadecimal digits.
[[nodiscard]] std::vector<std::byte> from_hex(std::string_view text);

}  // namespace limbo::testing
