#include "tests/tools/killmatrix/report.h"

#include <cstdio>

#include "tests/tools/killmatrix/sabotage.h"

namespace limbo::killmatrix {
namespace {

using Number = unsigned long long;

bool was_passed(const Arena& arena, const Result& result, std::size_t point) {
  return result.killed_at[point] > 0 || arena.passed[point].load() > 0;
}

// How often a sabotage has done what it must do.
Number harm_done(const Options& options, const Arena& arena, const Result& result) {
  const Harm harm = sabotage_of(options.sabotage).harm;
  if (harm == Harm::kNone) return arena.early() + arena.lost() + result.hung;
  return arena.count(harm);
}

void print_sabotage_json(const Options& options, const Arena& arena, const Result& result) {
  if (options.sabotage.empty()) return;
  std::printf("\"sabotage\": \"%s\", \"harmless\": %s, \"harm\": \"%s\", \"harm_done\": %llu, ",
              options.sabotage.c_str(), options.harmless ? "true" : "false",
              std::string(name_of(sabotage_of(options.sabotage).harm)).c_str(),
              harm_done(options, arena, result));
}

void print_counts_json(const Arena& arena, const Result& result) {
  std::printf("\"ways\": {");
  for (std::size_t way = 0; way < kWays; ++way) {
    std::printf("%s\"%s\": %llu", way == 0 ? "" : ", ", std::string(kWayNames[way]).c_str(),
                static_cast<Number>(result.ways[way]));
  }
  std::printf(
      "}, \"stops\": %llu, \"continued\": %llu, \"planned_errors\": %llu, \"receives\": %llu, "
      "\"forwards\": %llu, \"refusals\": %llu, \"checks\": %llu, \"orphans\": %llu, "
      "\"settled\": %llu, ",
      static_cast<Number>(result.stopped), static_cast<Number>(result.continued),
      static_cast<Number>(arena.planned_errors.load()), static_cast<Number>(arena.receives.load()),
      static_cast<Number>(arena.forwards.load()), static_cast<Number>(arena.refusals.load()),
      static_cast<Number>(arena.checks.load()), static_cast<Number>(arena.orphans.load()),
      static_cast<Number>(result.settled));
}

void print_points_json(const Arena& arena, const Result& result) {
  std::printf("\"fail_points\": {");
  for (std::size_t i = 0; i < kFailPointCount; ++i) {
    std::printf("%s\"%s\": {\"killed\": %llu, \"processes\": %llu}", i == 0 ? "" : ", ",
                std::string(kFailPoints[i].name).c_str(), static_cast<Number>(result.killed_at[i]),
                static_cast<Number>(arena.passed[i].load()));
  }
  std::printf("}, \"never_passed\": [");
  const char* comma = "";
  for (std::size_t i = 0; i < kFailPointCount; ++i) {
    if (was_passed(arena, result, i)) continue;
    std::printf("%s\"%s\"", comma, std::string(kFailPoints[i].name).c_str());
    comma = ", ";
  }
  std::printf("]");
}

void print_json(const Options& options, const Arena& arena, const Result& result,
                Number left_behind, double seconds) {
  std::printf("{\"seed\": %llu, \"device\": \"%s\", \"producers\": %u, \"consumers\": %u, ",
              static_cast<Number>(options.seed), options.device.c_str(), options.producers,
              options.consumers);
  print_sabotage_json(options, arena, result);
  std::printf(
      "\"kills\": %llu, \"sends\": %llu, \"lost\": %llu, \"early\": %llu, \"hung\": %llu, "
      "\"fds\": %llu, \"seconds\": %.3f, ",
      static_cast<Number>(result.kills), static_cast<Number>(arena.sends.load()),
      static_cast<Number>(arena.lost()), static_cast<Number>(arena.early()),
      static_cast<Number>(result.hung), left_behind, seconds);
  print_counts_json(arena, result);
  print_points_json(arena, result);
  std::printf("}\n");
}

void print_points(const Arena& arena, const Result& result) {
  std::size_t visited = 0;
  std::string not_killed;
  std::string not_passed;
  for (std::size_t i = 0; i < kFailPointCount; ++i) {
    const std::string name(kFailPoints[i].name);
    if (result.killed_at[i] > 0) {
      ++visited;
    } else if (was_passed(arena, result, i)) {
      not_killed += " " + name;
    } else {
      not_passed += " " + name;
    }
  }
  std::printf("Killed at %zu of %zu fail points.\n", visited, kFailPointCount);
  if (!not_killed.empty()) std::printf("Passed, and nobody died there:%s\n", not_killed.c_str());
  if (!not_passed.empty()) std::printf("Never passed:%s\n", not_passed.c_str());
}

void print_text(const Options& options, const Arena& arena, const Result& result, double seconds) {
  std::printf(
      "%llu processes of %u producers and %u consumers died in %.1f s (%.0f a second), "
      "seed %llu, %s device.\n",
      static_cast<Number>(result.kills), options.producers, options.consumers, seconds,
      static_cast<double>(result.kills) / seconds, static_cast<Number>(options.seed),
      options.device.c_str());
  std::printf(
      "%llu received, %llu sent on, %llu refused as they may be, %llu contents compared, "
      "%llu orphaned unfinished, %llu stops, %llu balances.\n",
      static_cast<Number>(arena.receives.load()), static_cast<Number>(arena.forwards.load()),
      static_cast<Number>(arena.refusals.load()), static_cast<Number>(arena.checks.load()),
      static_cast<Number>(arena.orphans.load()), static_cast<Number>(result.stopped),
      static_cast<Number>(result.settled));
  print_points(arena, result);
  if (options.sabotage.empty()) return;
  std::printf("The mistake %s%s must do harm (%s): done %llu times.\n", options.sabotage.c_str(),
              options.harmless ? ", which nobody makes," : "",
              std::string(name_of(sabotage_of(options.sabotage).harm)).c_str(),
              harm_done(options, arena, result));
}

}  // namespace

bool report(const Options& options, const Arena& arena, const Result& result,
            std::uint64_t left_behind, double seconds) {
  const Number lost = arena.lost();
  const Number early = arena.early();
  if (options.json) {
    print_json(options, arena, result, left_behind, seconds);
  } else {
    print_text(options, arena, result, seconds);
  }
  std::printf("kills=%llu sends=%llu lost=%llu early=%llu hung=%llu fds=+%llu\n",
              static_cast<Number>(result.kills), static_cast<Number>(arena.sends.load()), lost,
              early, static_cast<Number>(result.hung), static_cast<Number>(left_behind));
  return lost == 0 && early == 0 && result.hung == 0 && left_behind == 0;
}

}  // namespace limbo::killmatrix
