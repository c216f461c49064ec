#include "tests/processes/peer_process.h"

#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <map>
#include <stdexcept>

#include "allocator/error.h"
#include "allocator/options.h"
#include "ipc/fail_points.h"
#include "ipc/sharing.h"
#include "tests/processes/peer_forks.h"
#include "tests/support/child_process.h"

namespace limbo::testing {
namespace {

using Words = std::istringstream;

template <typename Value = std::string>
Value next(Words& words) {
  Value value{};
  if (!(words >> value)) throw std::invalid_argument("a word is missing");
  return value;
}

const std::map<std::string, std::function<std::string(Words&)>>& commands() {
  static const std::map<std::string, std::function<std::string(Words&)>> all = {
      {"refuse",
       [](Words& w) {
         ReceiveOptions options;
         options.check_extra = [](const Bytes&) { throw Error(ErrorCode::kBadDescriptor, "No."); };
         (void)process_sharing().receive(from_hex(next(w)), options);
         return std::string();
       }},
      {"open_driver_file", [](Words& w) { return open_driver_file(next<int>(w)), std::string(); }},
      {"open_driver_file_at",
       [](Words& w) {
         const std::string fail_point = next(w);
         return open_driver_file_at(fail_point, next<int>(w)), std::string();
       }},
      {"fork_idle_child", [](Words&) { return std::to_string(fork_idle_child()); }},
      {"spawn_idle_program", [](Words&) { return std::to_string(spawn_idle_program()); }},
      {"cut_connections",
       [](Words&) {
         cut_connections();
         return std::string();
       }},
      {"unpublish",
       [](Words& w) { return std::string(process_sharing().unpublish(next(w)) ? "1" : "0"); }},
      {"acquire", [](Words& w) { return to_hex(process_sharing().acquire(next(w))); }},
      {"withdraw",
       [](Words& w) {
         process_sharing().withdraw(from_hex(next(w)));
         return std::string();
       }},
      {"collect",
       [](Words&) {
         process_sharing().collect();
         return std::string();
       }},
      {"reap",
       [](Words& w) {
         const Reaped reaped = process_sharing().reap(next(w) == "force");
         return std::to_string(reaped.leases) + " " + std::to_string(reaped.claims);
       }},
      {"drain",
       [](Words& w) {
         const std::chrono::milliseconds at_most(next<std::int64_t>(w));
         return std::string(process_sharing().drain(at_most) ? "1" : "0");
       }},
      {"set_option",
       [](Words& w) {
         const auto name = next(w);
         set_option(name, next<std::int64_t>(w));
         return std::string();
       }},
      {"set_fail_points",
       [](Words& w) {
         std::string spec;
         w >> spec;
         set_fail_points(spec);
         return std::string();
       }},
      {"passed", [](Words& w) { return std::to_string(fail_point_passed(next(w))); }},
      {"exec_sleep",
       [](Words&) -> std::string {
         ::execl("/bin/sleep", "sleep", "1000", nullptr);
         throw std::runtime_error("exec failed");
       }},
      {"leave", [](Words& w) -> std::string { std::exit(next<int>(w)); }},
      {"leave_at_once", [](Words& w) -> std::string { ::_exit(next<int>(w)); }},
  };
  return all;
}

}  // namespace

std::optional<std::string> run_for_process(const std::string& command, std::istringstream& words) {
  const auto found = commands().find(command);
  if (found == commands().end()) return std::nullopt;
  return found->second(words);
}

}  // namespace limbo::testing
