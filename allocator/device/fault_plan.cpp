#include "allocator/device/fault_plan.h"

#include <algorithm>
#include <charconv>
#include <csignal>
#include <optional>
#include <thread>

#include "allocator/error.h"

namespace limbo {

namespace {

constexpr std::array<std::string_view, kCallKinds> kNames{"memory_info",
                                                          "allocate",
                                                          "free",
                                                          "export_memory",
                                                          "open_memory",
                                                          "close_memory",
                                                          "stream_id",
                                                          "create_stream",
                                                          "destroy_stream",
                                                          "is_capturing",
                                                          "keep_while_graph_lives",
                                                          "synchronize",
                                                          "create_event",
                                                          "destroy_event",
                                                          "record_event",
                                                          "query_event",
                                                          "wait_event",
                                                          "register",
                                                          "unregister",
                                                          "write_words",
                                                          "wait_word",
                                                          "fill",
                                                          "copy",
                                                          "kernel"};

[[noreturn]] void refuse(std::string_view part, const std::string& why) {
  throw Error(ErrorCode::kBadArgument, "The fault \"" + std::string(part) + "\" " + why + ".",
              "Write KIND:N=ACTION, for instance open_memory:1=fail or allocate:*=slow:50.");
}

CallKind parse_kind(std::string_view part, std::string_view name) {
  const auto found = std::find(kNames.begin(), kNames.end(), name);
  if (found != kNames.end()) return static_cast<CallKind>(found - kNames.begin());
  std::string known;
  for (const std::string_view each : kNames) known += " " + std::string(each);
  refuse(part, "names no kind of call; there are:" + known);
}

std::optional<std::uint64_t> parse_number(std::string_view text) {
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size()) return std::nullopt;
  return value;
}

void parse_action(std::string_view part, std::string_view action, Fault& fault) {
  if (action == "fail") {
    fault.action = Fault::Action::kFail;
  } else if (action == "full" && fault.kind == CallKind::kAllocate) {
    fault.action = Fault::Action::kFull;
  } else if (action == "hang") {
    fault.action = Fault::Action::kHang;
  } else if (action == "kill") {
    fault.action = Fault::Action::kKill;
  } else if (action.substr(0, 5) == "slow:" && parse_number(action.substr(5))) {
    fault.action = Fault::Action::kSlow;
    fault.delay = std::chrono::milliseconds(*parse_number(action.substr(5)));
  } else {
    refuse(part, "has no action that there is (fail, full for allocate, slow:MS, hang, kill)");
  }
}

Fault parse_fault(std::string_view part) {
  const std::size_t colon = part.find(':');
  const std::size_t equals = part.find('=');
  if (colon == std::string_view::npos || equals == std::string_view::npos || equals < colon) {
    refuse(part, "cannot be read");
  }
  Fault fault;
  fault.kind = parse_kind(part, part.substr(0, colon));
  const std::string_view nth = part.substr(colon + 1, equals - colon - 1);
  const auto number = nth == "*" ? std::optional<std::uint64_t>(0) : parse_number(nth);
  if (!number || (*number == 0 && nth != "*")) refuse(part, "needs a number from 1, or *");
  fault.nth = *number;
  parse_action(part, part.substr(equals + 1), fault);
  return fault;
}

}  // namespace

std::string_view call_kind_name(CallKind kind) noexcept {
  return kNames[static_cast<std::size_t>(kind)];
}

void FaultPlan::add(const Fault& fault) {
  const std::lock_guard lock(mutex_);
  const std::uint64_t seen = seen_[static_cast<std::size_t>(fault.kind)];
  planned_.push_back({fault, fault.nth == 0 ? 0 : seen + fault.nth});
}

void FaultPlan::add(std::string_view text) {
  std::vector<Fault> faults;
  while (!text.empty()) {
    const std::size_t comma = std::min(text.find(','), text.size());
    faults.push_back(parse_fault(text.substr(0, comma)));
    text.remove_prefix(std::min(comma + 1, text.size()));
  }
  for (const Fault& fault : faults) add(fault);
}

void FaultPlan::clear() {
  {
    const std::lock_guard lock(mutex_);
    planned_.clear();
  }
  release_hangs();
}

bool FaultPlan::on_call(CallKind kind) {
  std::optional<Fault> fault;
  {
    std::unique_lock lock(mutex_);
    const std::uint64_t number = ++seen_[static_cast<std::size_t>(kind)];
    if (planned_.empty()) return false;
    const auto found = std::find_if(planned_.begin(), planned_.end(), [&](const Planned& planned) {
      return planned.fault.kind == kind && (planned.at == 0 || planned.at == number);
    });
    if (found == planned_.end()) return false;
    fault = found->fault;
    if (found->at != 0) planned_.erase(found);
    if (fault->action == Fault::Action::kHang) {
      ++hanging_;
      changed_.notify_all();
      changed_.wait(lock, [this, now = releases_] { return releases_ != now; });
      --hanging_;
    }
  }
  switch (fault->action) {
    case Fault::Action::kFail:
      throw Error(ErrorCode::kDeviceError, std::string(call_kind_name(kind)) +
                                               ": refused by the simulated device's fault plan.");
    case Fault::Action::kKill:
      std::raise(SIGKILL);
      break;
    case Fault::Action::kSlow:
      std::this_thread::sleep_for(fault->delay);
      break;
    case Fault::Action::kFull:
      return true;
    case Fault::Action::kHang:
      break;
  }
  return false;
}

std::uint64_t FaultPlan::calls(CallKind kind) {
  const std::lock_guard lock(mutex_);
  const auto index = static_cast<std::size_t>(kind);
  return seen_[index] - reset_at_[index];
}

void FaultPlan::reset_calls() {
  const std::lock_guard lock(mutex_);
  reset_at_ = seen_;
}

int FaultPlan::hanging() {
  const std::lock_guard lock(mutex_);
  return hanging_;
}

bool FaultPlan::wait_for_hanging(int count, std::chrono::milliseconds at_most) {
  std::unique_lock lock(mutex_);
  return changed_.wait_for(lock, at_most, [&] { return hanging_ >= count; });
}

void FaultPlan::release_hangs() {
  const std::lock_guard lock(mutex_);
  ++releases_;
  changed_.notify_all();
}

}  // namespace limbo
