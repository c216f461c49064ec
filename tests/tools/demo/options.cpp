#include "tests/tools/demo/options.h"

#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <string_view>

#include "allocator/device/device.h"

namespace limbo::demo {
namespace {

constexpr char kHelp[] =
    R"(Limbo's demo: one process owns GPU memory, two others use it, one of them is killed.

  limbo_demo [--device auto|cuda|simulated] [--seconds S] [--blocks N]

  --device D   where the memory is: on a GPU (cuda), on a simulated one (simulated), or on a GPU
               where there is one (auto, the default; LIMBO_DEVICE changes it)
  --seconds S  how long the load runs, 1 to 3600 (default 5); one consumer is killed halfway
  --blocks N   lend at most N blocks (default: no limit)
  --help       this text

The last line says what came of every block that was lent. The exit status is 0 when all came back
and none was changed under a reader, else 1.
)";

std::uint64_t number(std::string_view option, const std::string& text, std::uint64_t minimum,
                     std::uint64_t maximum) {
  char* end = nullptr;
  const unsigned long long value = std::strtoull(text.c_str(), &end, 10);
  if (text.empty() || text[0] == '-' || *end != '\0' || value < minimum || value > maximum) {
    throw std::invalid_argument(std::string(option) + " takes a number from " +
                                std::to_string(minimum) + " to " + std::to_string(maximum) +
                                ", not \"" + text + "\".");
  }
  return value;
}

std::string device(const std::string& text) {
  if (text == "auto" || text == "cuda" || text == "simulated") return text;
  throw std::invalid_argument("The device is auto, cuda or simulated, not \"" + text + "\".");
}

}  // namespace

std::optional<Options> parse_options(int argc, char** argv) {
  Options options;
  const char* variable = std::getenv("LIMBO_DEVICE");
  if (variable != nullptr && *variable != '\0') options.device = device(variable);
  for (int i = 1; i < argc; ++i) {
    const std::string option = argv[i];
    if (option == "--help" || option == "-h") {
      std::fputs(kHelp, stdout);
      return std::nullopt;
    }
    if (option != "--device" && option != "--seconds" && option != "--blocks") {
      throw std::invalid_argument("There is no option \"" + option +
                                  "\"; there are --device, --seconds, --blocks and --help.");
    }
    if (i + 1 == argc) throw std::invalid_argument(option + " lacks its value.");
    const std::string value = argv[++i];
    if (option == "--device") options.device = device(value);
    if (option == "--seconds")
      options.duration = std::chrono::seconds(number(option, value, 1, 3600));
    if (option == "--blocks") options.most_lent = number(option, value, 1, 1'000'000);
  }
  return options;
}

std::string chosen_device(const Options& options, std::string& why) {
  if (options.device != "auto") return options.device;
  return cuda_available(&why) ? "cuda" : "simulated";
}

}  // namespace limbo::demo
