#include "tests/tools/replay/options.h"

#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <string_view>

namespace limbo::replay {
namespace {

constexpr char kHelp[] =
    R"(Replays recorded allocations (tests/data/README.md has the format) and says what they took.

  limbo_replay [OPTION...] TRACE...

  --device D        where the memory is: simulated (the default) or cuda. The simulated GPU has all
                    the memory that is asked for; nothing is written to it
  --backend B       which allocator: limbo (the default), or native, PyTorch's own, which needs a
                    GPU (--device cuda) and a build with torch
  --find-limit      also find the smallest memory limit under which the trace completes
  --threads N       N threads replay the trace side by side, each on streams of its own (1 to 64)
  --hold-to RATIO   check: run only within 1.01 times RATIO times what the trace requests at once
                    (RATIO is what another allocator needs); a trace that does not complete is a
                    failure
  --json            one JSON object a line instead of a table
  --help            this text

Of each trace it prints: events; the most that was requested at once; the most that was taken from
the device; nanoseconds per event, the driver's time included; the limit, if it was looked for. The
exit status is 0, 1 when something failed, or 2 for a bad command line.
)";

std::string one_of(const std::string& option, const std::string& value, const char* first,
                   const char* second) {
  if (value == first || value == second) return value;
  throw std::invalid_argument(option + " is " + first + " or " + second + ", not \"" + value +
                              "\".");
}

int threads(const std::string& text) {
  char* end = nullptr;
  const long value = std::strtol(text.c_str(), &end, 10);
  if (text.empty() || *end != '\0' || value < 1 || value > 64) {
    throw std::invalid_argument("--threads takes a number from 1 to 64, not \"" + text + "\".");
  }
  return static_cast<int>(value);
}

double ratio(const std::string& text) {
  char* end = nullptr;
  const double value = std::strtod(text.c_str(), &end);
  if (text.empty() || *end != '\0' || !(value >= 1 && value <= 1000)) {
    throw std::invalid_argument("--hold-to takes a ratio from 1 to 1000, not \"" + text + "\".");
  }
  return value;
}

void check(const Options& options) {
  const auto refuse = [](const char* why) { throw std::invalid_argument(why); };
  if (options.traces.empty()) refuse("Name at least one trace; --help says more.");
  if (options.backend == "native" && options.device != "cuda") {
    refuse("--backend native runs on a GPU only: add --device cuda.");
  }
  if (options.threads != 1 && (options.find_limit || options.hold_to != 0)) {
    refuse("A limit is exact for one thread only: take --threads away.");
  }
}

}  // namespace

std::optional<Options> parse_options(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string option = argv[i];
    if (option == "--help" || option == "-h") {
      std::fputs(kHelp, stdout);
      return std::nullopt;
    }
    if (option == "--find-limit") {
      options.find_limit = true;
    } else if (option == "--json") {
      options.json = true;
    } else if (option.rfind("--", 0) != 0) {
      options.traces.emplace_back(option);
    } else if (option == "--device" || option == "--backend" || option == "--threads" ||
               option == "--hold-to") {
      if (i + 1 == argc) throw std::invalid_argument(option + " lacks its value.");
      const std::string value = argv[++i];
      if (option == "--device") options.device = one_of(option, value, "simulated", "cuda");
      if (option == "--backend") options.backend = one_of(option, value, "limbo", "native");
      if (option == "--threads") options.threads = threads(value);
      if (option == "--hold-to") options.hold_to = ratio(value);
    } else {
      throw std::invalid_argument("There is no option \"" + option +
                                  "\"; there are --device, --backend, --find-limit, --threads, "
                                  "--hold-to, --json and --help.");
    }
  }
  check(options);
  return options;
}

}  // namespace limbo::replay
