#include "tests/tools/killmatrix/report.h"

#include <cstdio>

namespace limbo::killmatrix {
namespace {

using Number = unsigned long long;

bool was_passed(const Arena& arena, const Result& result, std::size_t point) {
  return result.killed_at[point] > 0 || arena.passed[point].load() > 0;
}

void print_json(const Options& options, const Arena& arena, const Result& result, Number lost,
                Number early, Number left_behind, double seconds) {
  std::printf("{\"seed\": %llu, \"device\": \"%s\", \"producers\": %u, \"consumers\": %u, ",
              static_cast<Number>(options.seed), options.device.c_str(), options.producers,
              options.consumers);
  std::printf(
      "\"kills\": %llu, \"sends\": %llu, \"lost\": %llu, \"early\": %llu, \"hung\": %llu, "
      "\"fds\": %llu, ",
      static_cast<Number>(result.kills), static_cast<Number>(arena.sends.load()), lost, early,
      static_cast<Number>(result.hung), left_behind);
  std::printf(
      "\"receives\": %llu, \"forwards\": %llu, \"refusals\": %llu, \"checks\": %llu, "
      "\"orphans\": %llu, \"stops\": %llu, \"settled\": %llu, \"seconds\": %.3f, ",
      static_cast<Number>(arena.receives.load()), static_cast<Number>(arena.forwards.load()),
      static_cast<Number>(arena.refusals.load()), static_cast<Number>(arena.checks.load()),
      static_cast<Number>(arena.orphans.load()), static_cast<Number>(result.stopped),
      static_cast<Number>(result.settled), seconds);
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
  std::printf("]}\n");
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

}  // namespace

bool report(const Options& options, const Arena& arena, const Result& result,
            std::uint64_t left_behind, double seconds) {
  const Number lost = arena.lost.load();
  const Number early = arena.early.load();
  if (options.json) {
    print_json(options, arena, result, lost, early, left_behind, seconds);
  } else {
    print_text(options, arena, result, seconds);
    std::printf("kills=%llu sends=%llu lost=%llu early=%llu hung=%llu fds=+%llu\n",
                static_cast<Number>(result.kills), static_cast<Number>(arena.sends.load()), lost,
                early, static_cast<Number>(result.hung), static_cast<Number>(left_behind));
  }
  return lost == 0 && early == 0 && result.hung == 0 && left_behind == 0;
}

}  // namespace limbo::killmatrix
