#include "ipc/fail_points.h"

#include <array>
#include <charconv>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>
#include <utility>

#include "allocator/error.h"
#include "ipc/fail_point_hooks.h"

namespace limbo {
namespace {

enum class Action : std::uint8_t { kNone, kCrash, kStop, kDelay, kError };

struct Setting {
  Action action = Action::kNone;
  std::uint64_t delay_ms = 0;
  std::uint64_t nth = 0;  // 0: every passing
};

// Set while other threads may pass, who then see the old setting, the new one, or some of either.
struct SharedSetting {
  std::atomic<Action> action{Action::kNone};
  std::atomic<std::uint64_t> delay_ms{0};
  std::atomic<std::uint64_t> nth{0};

  void store(const Setting& setting) noexcept {
    action.store(setting.action, std::memory_order_relaxed);
    delay_ms.store(setting.delay_ms, std::memory_order_relaxed);
    nth.store(setting.nth, std::memory_order_relaxed);
  }
  [[nodiscard]] Setting load() const noexcept {
    return {action.load(std::memory_order_relaxed), delay_ms.load(std::memory_order_relaxed),
            nth.load(std::memory_order_relaxed)};
  }
};

struct Point {
  SharedSetting setting;
  std::function<void()> hook;  // while `hooked`
  std::atomic<bool> hooked{false};
  std::atomic<std::uint64_t> passed{0};
};

std::array<Point, kFailPointCount>& points() {
  static auto* made = new std::array<Point, kFailPointCount>;
  return *made;
}

[[noreturn]] void refuse(const std::string& happened) {
  throw Error(ErrorCode::kBadArgument, happened,
              "Use NAME=crash, NAME=stop, NAME=delay:MS or NAME=error, with @N for the N-th "
              "passing, separated by commas.");
}

std::uint64_t number(std::string_view text, std::string_view whole) {
  std::uint64_t value = 0;
  const auto [end, failure] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (text.empty() || failure != std::errc{} || end != text.data() + text.size()) {
    refuse("Fail point \"" + std::string(whole) + "\" has \"" + std::string(text) +
           "\" where a number belongs.");
  }
  return value;
}

struct Parsed {
  std::size_t index = 0;
  Setting setting;
};

Parsed parse(std::string_view text) {
  const std::string whole(text);
  const std::size_t equals = text.find('=');
  if (equals == std::string_view::npos) refuse("Fail point \"" + whole + "\" has no action.");
  Parsed parsed;
  parsed.index = fail_point_index(text.substr(0, equals));
  if (parsed.index == kFailPointCount) {
    std::string names;
    for (const FailPointName& point : kFailPoints) names += " " + std::string(point.name);
    refuse("There is no fail point \"" + std::string(text.substr(0, equals)) +
           "\". There are:" + names + ".");
  }
  std::string_view action = text.substr(equals + 1);
  std::uint64_t nth = 0;
  const std::size_t at = action.find('@');
  if (at != std::string_view::npos) {
    nth = number(action.substr(at + 1), whole);
    if (nth == 0) refuse("Fail point \"" + whole + "\" asks for passing 0; they count from 1.");
    action = action.substr(0, at);
  }
  constexpr std::string_view kDelay = "delay:";
  if (action == "crash" || action == "stop" || action == "error") {
    parsed.setting.action = action == "crash"  ? Action::kCrash
                            : action == "stop" ? Action::kStop
                                               : Action::kError;
    parsed.setting.nth = nth == 0 ? 1 : nth;
    if (parsed.setting.action == Action::kError && !kFailPoints[parsed.index].can_fail) {
      refuse("Fail point \"" + whole + "\" stands where no error can be handled.");
    }
  } else if (action.substr(0, kDelay.size()) == kDelay) {
    parsed.setting = {Action::kDelay, number(action.substr(kDelay.size()), whole), nth};
  } else {
    refuse("Fail point \"" + whole + "\" has an unknown action.");
  }
  return parsed;
}

Point& point_named(std::string_view name) {
  const std::size_t index = fail_point_index(name);
  if (index == kFailPointCount) refuse("There is no fail point \"" + std::string(name) + "\".");
  return points()[index];
}

// At load time, before any thread of the program can pass a point.
const bool kEnvironmentRead = [] {
  const char* spec = std::getenv("LIMBO_FAIL_POINTS");
  if (spec == nullptr || *spec == '\0') return true;
  try {
    set_fail_points(spec);
  } catch (const Error& error) {
    std::fprintf(stderr, "limbo: LIMBO_FAIL_POINTS: %s\n", error.what());
    std::_Exit(2);
  }
  return true;
}();

}  // namespace

std::atomic<bool> fail_points_detail::any_set{false};

void set_fail_points(std::string_view spec) {
  std::array<Setting, kFailPointCount> settings;
  bool any = false;
  while (!spec.empty()) {
    const std::size_t comma = spec.find(',');
    const std::string_view one = spec.substr(0, comma);
    spec = comma == std::string_view::npos ? std::string_view{} : spec.substr(comma + 1);
    if (one.empty()) continue;
    const Parsed parsed = parse(one);
    settings[parsed.index] = parsed.setting;
    any = true;
  }
  fail_points_detail::any_set.store(false, std::memory_order_relaxed);
  for (std::size_t i = 0; i < kFailPointCount; ++i) {
    points()[i].setting.store(settings[i]);
    points()[i].hooked.store(false, std::memory_order_relaxed);
    points()[i].passed.store(0, std::memory_order_relaxed);
  }
  fail_points_detail::any_set.store(any, std::memory_order_relaxed);
}

void at_fail_point(std::string_view name, std::function<void()> act) {
  Point& point = point_named(name);
  point.hook = std::move(act);
  point.hooked.store(point.hook != nullptr, std::memory_order_release);
  fail_points_detail::any_set.store(true, std::memory_order_relaxed);
}

std::size_t fail_point_passed(std::string_view name) {
  return point_named(name).passed.load(std::memory_order_relaxed);
}

void fail_points_detail::pass(std::size_t index) {
  Point& point = points()[index];
  const Setting setting = point.setting.load();
  const std::uint64_t passing = point.passed.fetch_add(1, std::memory_order_relaxed) + 1;
  if (point.hooked.exchange(false, std::memory_order_acquire)) {
    const auto act = std::move(point.hook);  // which may set another
    act();
  }
  if (setting.nth != 0 && passing != setting.nth) return;
  switch (setting.action) {
    case Action::kNone:
      break;
    case Action::kCrash:
      std::raise(SIGKILL);
      break;
    case Action::kStop:
      std::raise(SIGSTOP);
      break;
    case Action::kDelay:
      std::this_thread::sleep_for(std::chrono::milliseconds(setting.delay_ms));
      break;
    case Action::kError:
      throw Error(ErrorCode::kInternal,
                  "Fail point " + std::string(kFailPoints[index].name) + " was told to fail.");
  }
}

}  // namespace limbo
