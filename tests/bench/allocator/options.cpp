#include "tests/bench/allocator/options.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <stdexcept>
#include <string_view>

namespace limbo::bench {
namespace {

constexpr char kHelp[] =
    R"(What an allocation costs, through torch's C++ interface (raw_alloc, raw_delete).

  limbo_bench_allocator [--backend NAME] [--device auto|cuda|simulated] [--core] [--only PREFIXES]
                        [--quick] [--json FILE]

  --backend NAME  limbo (the default), native, native-expandable, async (cudaMallocAsync), or
                  current (whatever the process has chosen; for programs that load this as a library)
  --device D      a GPU (cuda), a simulated one (simulated; limbo only), or a GPU where there is one
  --core          limbo's allocator by itself, without torch's interface before it
  --only PREFIXES only rows whose name begins with one of these (with commas between them)
  --quick         small numbers: to see that it works
  --json FILE     the results for programs, too
  --help          this text

Every row is the best of interleaved rounds; a context is current in every thread. The exit status
is 0 when everything worked and 2 for a wrong command line; being slow is no error.
`python tests/bench/allocator.py` runs all back ends and puts them side by side.
)";

constexpr std::array<std::string_view, 5> kBackends = {"limbo", "native", "native-expandable",
                                                       "async", "current"};
constexpr std::array<std::string_view, 3> kDevices = {"auto", "cuda", "simulated"};

template <std::size_t Count>
std::string one_of(const std::array<std::string_view, Count>& known, const std::string& option,
                   const std::string& value) {
  if (std::find(known.begin(), known.end(), value) != known.end()) return value;
  std::string names;
  for (const std::string_view name : known)
    names += (names.empty() ? "" : ", ") + std::string(name);
  throw std::invalid_argument(option + " takes one of " + names + ", not \"" + value + "\".");
}

}  // namespace

std::optional<AllocatorOptions> parse_allocator_options(int argc, char** argv) {
  AllocatorOptions options;
  for (int i = 1; i < argc; ++i) {
    const std::string option = argv[i];
    if (option == "--help" || option == "-h") {
      std::fputs(kHelp, stdout);
      return std::nullopt;
    }
    if (option == "--quick" || option == "--core") {
      (option == "--quick" ? options.quick : options.core) = true;
      continue;
    }
    if (option != "--backend" && option != "--device" && option != "--only" && option != "--json") {
      throw std::invalid_argument("There is no option \"" + option + "\"; --help lists them.");
    }
    if (i + 1 == argc) throw std::invalid_argument(option + " lacks its value.");
    const std::string value = argv[++i];
    if (option == "--backend") options.backend = one_of(kBackends, option, value);
    if (option == "--device") options.device = one_of(kDevices, option, value);
    if (option == "--only") options.only = value;
    if (option == "--json") options.json = value;
  }
  if (options.device == "simulated" && options.backend != "limbo") {
    throw std::invalid_argument("Only limbo runs on the simulated device, not \"" +
                                options.backend + "\".");
  }
  return options;
}

}  // namespace limbo::bench
