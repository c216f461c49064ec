#include "tests/processes/peer.h"

#include <gtest/gtest.h>

#include <sstream>
#include <thread>

#include "tests/support/eventually.h"

namespace limbo::testing {

Peer::~Peer() {
  try {
    expect_balance();
  } catch (const std::exception& failure) {
    ADD_FAILURE() << failure.what();
  }
}

void Peer::expect_balance(bool alone) {
  if (::testing::Test::HasFailure() || unanswered_ != 0 || !child_.running()) return;
  EXPECT_EQ(call(alone ? "balance alone" : "balance with_producers"), "")
      << "left behind by process " << child_.pid();
}

void Peer::send(const std::string& command) {
  child_.send(command);
  ++unanswered_;
}

std::string Peer::call(const std::string& command) {
  send(command);
  return answer();
}

std::string Peer::answer() {
  const std::string answer = child_.receive();
  --unanswered_;
  std::istringstream words(answer);
  std::string first;
  std::string rest;
  words >> first;
  if (first == "error") {
    std::string code;
    words >> code;
    std::getline(words, rest);
    throw PeerError(code, rest);
  }
  std::getline(words >> std::ws, rest);
  return rest;
}

bool Peer::survives(const std::string& command) {
  try {
    (void)call(command);
    return true;
  } catch (const PeerError&) {
    return true;
  } catch (const ChildFailed&) {
    return false;
  }
}

void Peer::allocate(const std::string& name, std::size_t size_bytes, std::uint32_t value) {
  call("allocate " + name + " " + std::to_string(size_bytes) + " " + std::to_string(value));
}
void Peer::free(const std::string& name) {
  call("free " + name);
}
void Peer::fill(const std::string& name, std::uint32_t value) {
  call("fill " + name + " " + std::to_string(value));
}
bool Peer::holds(const std::string& name, std::uint32_t value) {
  return call("holds " + name + " " + std::to_string(value)) == "1";
}
void Peer::write_for(const std::string& name, std::uint32_t value,
                     std::chrono::milliseconds duration) {
  call("write_for " + name + " " + std::to_string(value) + " " + std::to_string(duration.count()));
}
void Peer::use_stream(const std::string& name) {
  call("use_stream " + name);
}
void Peer::record_stream(const std::string& block, const std::string& stream, int device) {
  call("record_stream " + block + " " + stream + (device < 0 ? "" : " " + std::to_string(device)));
}
void Peer::destroy_stream(const std::string& name) {
  call("destroy_stream " + name);
}
void Peer::begin_capture(const std::string& mode) {
  call("begin_capture " + mode);
}
void Peer::begin_capture_during(const std::string& kind, const std::string& cause) {
  call("begin_capture_during " + kind + " " + cause);
}
void Peer::announce_capture() {
  call("announce_capture");
}
void Peer::withdraw_capture() {
  call("withdraw_capture");
}
void Peer::end_capture(const std::string& graph) {
  call("end_capture " + graph);
}
void Peer::launch_graph(const std::string& graph) {
  call("launch_graph " + graph);
}
void Peer::destroy_graph(const std::string& graph) {
  call("destroy_graph " + graph);
}
bool Peer::keep_for_graph() {
  return call("keep_for_graph") == "1";
}
bool Peer::lose_context(int device) {
  return call("lose_context" + (device < 0 ? "" : " " + std::to_string(device))) == "1";
}
void Peer::synchronize() {
  call("synchronize");
}

std::string Peer::share(const std::string& name, std::int64_t time_limit_ms, int consumers) {
  return call("share " + name + " " + std::to_string(time_limit_ms) + " " +
              std::to_string(consumers));
}
void Peer::receive(const std::string& name, const std::string& descriptor, int device) {
  call("receive " + name + " " + descriptor + " " + std::to_string(device));
}
void Peer::refuse(const std::string& descriptor) {
  call("refuse " + descriptor);
}
void Peer::release(const std::string& name) {
  call("release " + name);
}
void Peer::drop(const std::string& name) {
  call("drop " + name);
}
void Peer::drop_aside(const std::string& name) {
  call("drop_aside " + name);
}
void Peer::join() {
  call("join");
}
void Peer::publish(const std::string& name, const std::string& block) {
  call("publish " + name + " " + block);
}
bool Peer::unpublish(const std::string& name) {
  return call("unpublish " + name) == "1";
}
std::string Peer::acquire(const std::string& name) {
  return call("acquire " + name);
}
void Peer::withdraw(const std::string& descriptor) {
  call("withdraw " + descriptor);
}
void Peer::collect() {
  call("collect");
}
std::string Peer::reap(bool force) {
  return call(force ? "reap force" : "reap gently");
}
bool Peer::drain(std::chrono::milliseconds at_most) {
  return call("drain " + std::to_string(at_most.count())) == "1";
}
bool Peer::orphaned(const std::string& name) {
  return call("orphaned " + name) == "1";
}
void Peer::came_also_by(const std::string& name, const std::string& other) {
  call("came_also_by " + name + " " + other);
}
void Peer::empty_cache() {
  call("empty_cache");
}

std::map<std::string, std::int64_t> Peer::stats() {
  std::map<std::string, std::int64_t> numbers;
  std::istringstream words(call("stats"));
  std::string name;
  std::int64_t value = 0;
  while (words >> name >> value) numbers[name] = value;
  return numbers;
}

bool Peer::becomes(const std::string& name, std::int64_t value, std::chrono::milliseconds at_most) {
  return eventually([&] { return stat(name) == value; }, at_most);
}

std::vector<std::string> Peer::holders() {
  std::vector<std::string> lines;
  std::istringstream text(call("holders"));
  std::string line;
  while (std::getline(text, line, '|')) lines.push_back(line);
  return lines;
}
void Peer::check_invariants() {
  call("check_invariants");
}

void Peer::set_option(const std::string& name, std::int64_t value) {
  call("set_option " + name + " " + std::to_string(value));
}
void Peer::set_fail_points(const std::string& spec) {
  call("set_fail_points " + spec);
}
std::size_t Peer::passed(const std::string& fail_point) {
  return std::stoul(call("passed " + fail_point));
}
void Peer::set_faults(const std::string& plan) {
  call("set_faults " + plan);
}
std::uint64_t Peer::driver_calls() {
  return std::stoull(call("driver_calls"));
}
std::uint64_t Peer::calls(const std::string& kind) {
  return std::stoull(call("calls " + kind));
}
std::uint64_t Peer::mapped_by_others() {
  return std::stoull(call("mapped_by_others"));
}
std::string Peer::device_name() {
  return call("device_name");
}

pid_t Peer::fork_idle_child() {
  return static_cast<pid_t>(std::stol(call("fork_idle_child")));
}
std::string Peer::use_in_fork_child(int generations) {
  return call("use_in_fork_child " + std::to_string(generations));
}
int Peer::drop_in_fork_children(int children, const std::string& message) {
  return std::stoi(call("drop_in_fork_children " + std::to_string(children) + " " + message));
}
pid_t Peer::spawn_idle_program() {
  return static_cast<pid_t>(std::stol(call("spawn_idle_program")));
}
void Peer::cut_connections() {
  call("cut_connections");
}

void Peer::leave(int status) {
  send("leave " + std::to_string(status));
}
void Peer::leave_at_once(int status) {
  send("leave_at_once " + std::to_string(status));
}

}  // namespace limbo::testing
