// The model of the sharing protocol: explores scenarios and says what it found.
//
//   limbo_model                        the short run
//   limbo_model --all                  every scenario
//   limbo_model --scenario NAME        one of them
//   limbo_model --finds MISTAKE        makes the mistake; succeeds if it is found
//   limbo_model --weaken ORDER         takes a memory order away; succeeds if that is found
//   limbo_model --list
//   --threads N                        how many threads explore (1)
//   --max-states N                     give up after so many states of a scenario
//   --seconds N                        give up after so long with a scenario
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string_view>
#include <utility>

#include "tests/model/explorer.h"

namespace {

using limbo::model::Result;
using limbo::model::Rule;
using limbo::model::Scenario;
using limbo::protocol::Mistake;

struct Options {
  bool all = false;
  bool list = false;
  std::string_view scenario;
  const char* finds = nullptr;
  std::string_view weaken;
  unsigned threads = 1;
  limbo::model::Bounds bounds;
};

int usage() {
  std::fprintf(
      stderr,
      "Use: limbo_model [--all | --scenario NAME | --finds MISTAKE | --weaken ORDER | --list] "
      "[--threads N] [--max-states N] [--seconds N]\n");
  return 2;
}

bool read(int argc, char** argv, Options& options) {
  for (int i = 1; i < argc; ++i) {
    const std::string_view option = argv[i];
    const char* value = i + 1 < argc ? argv[i + 1] : nullptr;
    if (option == "--all") {
      options.all = true;
    } else if (option == "--list") {
      options.list = true;
    } else if (value == nullptr) {
      return false;
    } else if (option == "--scenario") {
      options.scenario = argv[++i];
    } else if (option == "--finds") {
      options.finds = argv[++i];
    } else if (option == "--weaken") {
      options.weaken = argv[++i];
    } else if (option == "--threads") {
      options.threads = static_cast<unsigned>(std::strtoul(argv[++i], nullptr, 10));
    } else if (option == "--max-states") {
      options.bounds.max_states = std::strtoull(argv[++i], nullptr, 10);
    } else if (option == "--seconds") {
      options.bounds.at_most = std::chrono::seconds(std::strtoul(argv[++i], nullptr, 10));
    } else {
      return false;
    }
  }
  return options.threads >= 1 && options.bounds.max_states >= 1 &&
         options.bounds.at_most.count() >= 1;
}

// True: as it should be.
bool run(const Scenario& scenario, const Options& options) {
  const auto start = std::chrono::steady_clock::now();
  const Result result = explore(scenario, options.threads, options.bounds);
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  std::printf("%-26.*s %12llu states %9llu ends %8.1f s  %s\n",
              static_cast<int>(scenario.name.size()), scenario.name.data(),
              static_cast<unsigned long long>(result.states),
              static_cast<unsigned long long>(result.ends), took.count(),
              result.broken != Rule::kNone ? "BROKEN"
              : result.complete            ? "holds"
                                           : "given up");
  if (result.broken != Rule::kNone) {
    const std::string_view rule = text_of(result.broken);
    std::printf("\n%.*s: %.*s.\n%s\n", static_cast<int>(scenario.name.size()), scenario.name.data(),
                static_cast<int>(rule.size()), rule.data(),
                describe(scenario, result.path).c_str());
  }
  std::fflush(stdout);
  return result.broken == Rule::kNone && result.complete;
}

int find(const Options& options) {
  const Mistake mistake = limbo::protocol::mistake_named(options.finds);
  limbo::protocol::g_mistake = mistake;
  bool looked = false;
  for (const Scenario& scenario : limbo::model::scenarios()) {
    const bool named = options.scenario.empty() || options.scenario == scenario.name;
    bool meant = false;
    for (const Mistake each : scenario.finds) meant |= each == mistake;
    if (!named || !meant) continue;
    looked = true;
    if (run(scenario, options)) {
      std::printf("The mistake %s is NOT found in %.*s.\n", options.finds,
                  static_cast<int>(scenario.name.size()), scenario.name.data());
      return 1;
    }
  }
  std::printf(looked ? "The mistake %s is found.\n" : "No scenario looks for the mistake %s.\n",
              options.finds);
  return looked ? 0 : 1;
}

// Looked for where it matters first of all.
int weaken(const Options& options) {
  using limbo::model::Weakened;
  constexpr std::pair<std::string_view, Weakened> kOrders[] = {
      {"consumers-seq-cst", Weakened::kConsumersSeqCst},
      {"producers-seq-cst", Weakened::kProducersSeqCst},
      {"releases", Weakened::kReleases},
  };
  for (const auto& [name, weakened] : kOrders) {
    if (name != options.weaken) continue;
    limbo::model::g_weakened = weakened;
    for (const Scenario& scenario : limbo::model::scenarios()) {
      if (scenario.name != "late-opener") continue;
      const bool found = !run(scenario, options);
      std::printf("The lack of this order is %s.\n", found ? "found" : "NOT found");
      return found ? 0 : 1;
    }
  }
  std::fprintf(stderr, "ORDER is consumers-seq-cst, producers-seq-cst or releases.\n");
  return 2;
}

void list() {
  for (const Scenario& scenario : limbo::model::scenarios()) {
    std::printf("%-26.*s %s %.*s\n", static_cast<int>(scenario.name.size()), scenario.name.data(),
                scenario.in_short_run ? "short" : "     ", static_cast<int>(scenario.what.size()),
                scenario.what.data());
    for (const Mistake mistake : scenario.finds) {
      for (const limbo::protocol::MistakeName& each : limbo::protocol::kMistakes) {
        if (each.mistake != mistake) continue;
        std::printf("%-26s       finds %.*s\n", "", static_cast<int>(each.name.size()),
                    each.name.data());
      }
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  if (!read(argc, argv, options)) return usage();
  if (options.list) return list(), 0;
  if (options.finds != nullptr) return find(options);
  if (!options.weaken.empty()) return weaken(options);
  bool any = false;
  bool good = true;
  for (const Scenario& scenario : limbo::model::scenarios()) {
    const bool wanted = !options.scenario.empty() ? options.scenario == scenario.name
                                                  : options.all || scenario.in_short_run;
    if (!wanted) continue;
    any = true;
    good &= run(scenario, options);
  }
  if (!any) return std::fprintf(stderr, "There is no such scenario; --list names them.\n"), 2;
  return good ? 0 : 1;
}
