#include "tests/bench/options.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <sstream>
#include <stdexcept>
#include <string_view>

#include "tests/bench/benchmarks.h"

namespace limbo::bench {
namespace {

constexpr char kHelp[] =
    R"(Limbo's benchmarks: what sharing costs, each operation by itself, against its budget.

  limbo_bench [--device auto|cuda|simulated] [--only NAME[,NAME...]] [--json FILE] [--quick]
  limbo_bench sends [--count N] [--device D] [--json FILE] [--leak descriptors|memory|events]

  --device D    a GPU (cuda), a simulated one (simulated), or a GPU where there is one (auto, the
                default; LIMBO_DEVICE changes it). Times of the simulated device show only that
                everything works.
  --only NAMES  these benchmarks alone (default: all)
  --json FILE   the results for programs, too
  --quick       small numbers, in seconds: not about the budgets
  sends         sends N messages (default 1,000,000) from one process to another and watches both:
                memory, file descriptors, mappings and events must stay flat
  --leak WHAT   lets the receiver leak, to see that it is seen
  --help        this text

The exit status is 0 when everything worked (and stayed flat), 1 when something did not, and 2 for a
wrong command line. Being slow is no error.

The benchmarks:
)";

std::string known_names() {
  std::string names;
  for (const Benchmark& benchmark : benchmarks()) {
    names += (names.empty() ? "" : ", ") + benchmark.name;
  }
  return names;
}

std::vector<std::string> names_of(const std::string& text) {
  std::vector<std::string> names;
  std::istringstream parts(text);
  for (std::string name; std::getline(parts, name, ',');) {
    const bool known =
        std::any_of(benchmarks().begin(), benchmarks().end(),
                    [&](const Benchmark& benchmark) { return benchmark.name == name; });
    if (!known) {
      throw std::invalid_argument("There is no benchmark \"" + name + "\"; there are " +
                                  known_names() + ".");
    }
    names.push_back(name);
  }
  return names;
}

std::uint64_t count_of(const std::string& text) {
  char* end = nullptr;
  const unsigned long long value = std::strtoull(text.c_str(), &end, 10);
  if (text.empty() || text[0] == '-' || *end != '\0' || value < 1'000 || value > 1'000'000'000) {
    throw std::invalid_argument("--count takes a number from 1000 to 1000000000, not \"" + text +
                                "\".");
  }
  return value;
}

std::string leak_of(const std::string& text) {
  if (text == "descriptors" || text == "memory" || text == "events") return text;
  throw std::invalid_argument("--leak takes descriptors, memory or events, not \"" + text + "\".");
}

std::string device_of(const std::string& text) {
  if (text == "auto" || text == "cuda" || text == "simulated") return text;
  throw std::invalid_argument("The device is auto, cuda or simulated, not \"" + text + "\".");
}

void print_help() {
  std::fputs(kHelp, stdout);
  for (const Benchmark& benchmark : benchmarks()) {
    std::printf("  %-8s  %s\n", benchmark.name.c_str(), benchmark.what.c_str());
  }
}

}  // namespace

std::optional<Options> parse_options(int argc, char** argv) {
  Options options;
  const char* variable = std::getenv("LIMBO_DEVICE");
  options.device = device_of(variable != nullptr && *variable != '\0' ? variable : "auto");
  for (int i = 1; i < argc; ++i) {
    const std::string option = argv[i];
    if (option == "--help" || option == "-h") {
      print_help();
      return std::nullopt;
    }
    if (option == "sends" || option == "--quick") {
      (option == "sends" ? options.sends : options.quick) = true;
      continue;
    }
    if (option != "--device" && option != "--only" && option != "--json" && option != "--count" &&
        option != "--leak") {
      throw std::invalid_argument("There is no option \"" + option + "\"; --help lists them.");
    }
    if (i + 1 == argc) throw std::invalid_argument(option + " lacks its value.");
    const std::string value = argv[++i];
    if (option == "--device") options.device = device_of(value);
    if (option == "--only") options.only = names_of(value);
    if (option == "--json") options.json = value;
    if (option == "--count") options.count = count_of(value);
    if (option == "--leak") options.leak = leak_of(value);
  }
  return options;
}

}  // namespace limbo::bench
