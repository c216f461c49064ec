// A process that lends and borrows on command: what the tests of sharing are written with.
//
// The child of role "peer" has the process's own allocator and sharing; every command is one line,
// and every answer is one line: "ok ..." or "error CODE text". A test lets two or more of them talk
// and kills them where it likes.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/child_process.h"

namespace limbo::testing {

// A command was answered by "error".
class PeerError : public std::runtime_error {
 public:
  PeerError(std::string code, const std::string& text)
      : std::runtime_error(code + ": " + text), code_(std::move(code)) {}
  [[nodiscard]] const std::string& code() const noexcept { return code_; }

 private:
  std::string code_;
};

class Peer {
 public:
  explicit Peer(const ChildOptions& options = {}) : child_("peer", {}, options) {}
  // Expects the balance of a process that has not ended.
  ~Peer();
  Peer(const Peer&) = delete;
  Peer& operator=(const Peer&) = delete;

  // Names of blocks are the test's own.
  void allocate(const std::string& name, std::size_t size_bytes, std::uint32_t value);
  void free(const std::string& name);
  void fill(const std::string& name, std::uint32_t value);
  // Whether every word of the block has this value, read behind the stream's work.
  [[nodiscard]] bool holds(const std::string& name, std::uint32_t value);
  // A kernel that writes the block for so long.
  void write_for(const std::string& name, std::uint32_t value, std::chrono::milliseconds duration);
  // Commands from now on use a stream of this name; "" is the default stream.
  void use_stream(const std::string& name);
  // Of the block's device, or of another: then the default stream, "default".
  void record_stream(const std::string& block, const std::string& stream, int device = -1);
  void destroy_stream(const std::string& name);  // not the one in use
  // Of the stream in use.
  void begin_capture(const std::string& mode = "relaxed");  // or "global"
  // By a program that says so (BeginningCapture), while another of its threads makes a call of that
  // kind, which `cause`, a command, leads to.
  void begin_capture_during(const std::string& kind, const std::string& cause);
  void announce_capture();  // and goes on; until withdraw_capture
  void withdraw_capture();
  void end_capture(const std::string& graph);
  void launch_graph(const std::string& graph);
  void destroy_graph(const std::string& graph);
  [[nodiscard]] bool keep_for_graph();  // Sharing::keep_for_graph
  // Loses the GPU context, of the first device or of another. True when that was seen.
  [[nodiscard]] bool lose_context(int device = -1);
  void synchronize();

  // A descriptor, as hexadecimal digits. time_limit_ms < 0: the default.
  [[nodiscard]] std::string share(const std::string& name, std::int64_t time_limit_ms = -1,
                                  int consumers = 1);
  void receive(const std::string& name, const std::string& descriptor, int device = -1);
  // Refuses it for what it carries: ReceiveOptions::check_extra throws.
  void refuse(const std::string& descriptor);
  void release(const std::string& name);
  void drop(const std::string& name);        // destroys the received block
  void drop_aside(const std::string& name);  // the same by another thread, without waiting for it
  void join();                               // waits for it
  void withdraw(const std::string& descriptor);
  // Under a name of one word.
  void publish(const std::string& name, const std::string& block);
  [[nodiscard]] bool unpublish(const std::string& name);
  [[nodiscard]] std::string acquire(const std::string& name);  // a descriptor
  void collect();
  // "LEASES CLAIMS" that were taken back.
  std::string reap(bool force);
  [[nodiscard]] bool drain(std::chrono::milliseconds at_most);
  [[nodiscard]] bool orphaned(const std::string& name);
  // Both are received: ReceivedBlock::came_also_by of the first.
  void came_also_by(const std::string& name, const std::string& other);
  void empty_cache();

  // "allocated", "active", "reserved", "limbo", "held_for_readers" (bytes), and the numbers of
  // SharingStats by name.
  [[nodiscard]] std::map<std::string, std::int64_t> stats();
  [[nodiscard]] std::int64_t stat(const std::string& name) { return stats().at(name); }
  // Waits until a number is what it should be.
  [[nodiscard]] bool becomes(const std::string& name, std::int64_t value,
                             std::chrono::milliseconds at_most = kPatience);
  [[nodiscard]] std::vector<std::string> holders();  // "pid state claims bytes why"
  void check_invariants();

  // Lets it give up all that it holds, lends and has allocated, and fails the test, with names, if
  // descriptors or mappings stay behind. Connections stay while both ends live: unless `alone`
  // (whoever lent to it has ended), those with producers are not counted. Does nothing to a process
  // that has ended or that owes an answer, and in a test that has failed.
  void expect_balance(bool alone = false);

  void set_option(const std::string& name, std::int64_t value);
  void set_fail_points(const std::string& spec);
  // How often a fail point was passed since it was set.
  [[nodiscard]] std::size_t passed(const std::string& fail_point);
  void set_faults(const std::string& plan);  // the simulated device's
  [[nodiscard]] std::uint64_t driver_calls();
  [[nodiscard]] std::uint64_t calls(const std::string& kind);  // simulated device only
  [[nodiscard]] std::uint64_t mapped_by_others();              // pieces that holders have mapped
  [[nodiscard]] std::string device_name();

  // Forks; the child does nothing but wait until it is killed. Returns its pid.
  pid_t fork_idle_child();
  // Forks, and uses sharing and all that was received in the child (2: in a child of that child):
  // the code of the error that every use meets, or what they meet; nothing when it died of them.
  [[nodiscard]] std::string use_in_fork_child(int generations = 1);
  // Forks so many children, one after another, while other threads receive and release `message`. Each
  // drops all that this process has received and ends. How many did so.
  [[nodiscard]] int drop_in_fork_children(int children, const std::string& message);
  // Starts another program that does nothing; its pid.
  pid_t spawn_idle_program();
  // Shuts every connection of its channels, at both ends, and goes on.
  void cut_connections();

  void leave(int status);          // std::exit
  void leave_at_once(int status);  // _exit

  // Sends a command and does not wait for its answer: for commands that do not come back, or whose
  // answer is asked for later.
  void send(const std::string& command);
  std::string answer();
  std::string call(const std::string& command);
  // As call, but says whether the child answered at all (it may die of the command).
  [[nodiscard]] bool survives(const std::string& command);

  [[nodiscard]] ChildProcess& process() noexcept { return child_; }

 private:
  ChildProcess child_;
  int unanswered_ = 0;
};

}  // namespace limbo::testing
