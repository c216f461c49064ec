#include "tests/tools/killmatrix/options.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <string_view>

#include "ipc/protocol/mistakes.h"
#include "tests/tools/killmatrix/sabotage.h"

namespace limbo::killmatrix {
namespace {

constexpr char kHelp[] =
    R"(The kill matrix: processes that lend and borrow die at every transition of the protocol.

  limbo_killmatrix [--seed S] [--kills K] [--consumers C] [--producers P]
                   [--spares N] [--device simulated|cuda] [--seconds T] [--json]
                   [--sabotage NAME [--harmless]] [...]

Producers and consumers send, receive, read, write, release and send again. They die of SIGKILL at
fail points and at random moments, of _exit, exec and exit; they stop and go on; fail points throw;
parents die before their fork children. Dead processes are replaced. Every block holds a number that
was never used before, which its readers and its owner compare; after every death the invariants of
the ledgers are checked; now and then all give back what they hold, and everything must come back.

  --seed S         what is drawn; the same seed draws the same fates (default 1)
  --kills K        how many processes die, in whatever way: of SIGKILL (at fail points, at random,
                   stopped, as hung), _exit, exit, exec (default 1000); --json counts each way
  --consumers C    consumers at one time, 1 to 32 (default 3)
  --producers P    producers at one time, 1 to 4 (default 2)
  --spares N       so many more of either are started ahead and take the place of the dead, 0 to 8
                   (default 0; cuda: 3, since a context takes its time)
  --device D       simulated (the default) or cuda
  --seconds T      end after so many seconds, even with fewer kills
  --settle N       look at the balance after every N kills (default 50)
  --lifetime MS    how long a process lives on average (default 60; cuda: 400)
  --deadline MS    how long anything may take; what takes longer hangs (default 30000)
  --sabotage NAME  with a library that makes one of the mistakes that the protocol forbids. It goes on
                   until the mistake has done the harm that it must do: a block is reused too early
                   (ttl-on-held, no-lifeline, no-recheck, scan-before-closing, shared-timeline), does
                   not come back (dirty-first), or is not found under its name (names-unlocked).
                   With another one of ipc/protocol/mistakes.h: any harm
  --harmless       with --sabotage: all as there, its delays too, but nobody makes the mistake
  --json           the result as JSON, a line before the last, with the kills in each way and at each
                   fail point, and the points that were never passed
  --verbose        how it goes, at every look at the balance
  --help           this text

The last line is `kills=K sends=N lost=L early=E hung=H fds=+F`: what was lost (did not come back, or
met an error without a reason), reused too early, did not end in time, and how many descriptors and
files stayed behind. The exit status is 0 when L, E, H and F are 0, else 1, which is a sabotage's; 2
for a wrong command line. What was found is told on standard error, with the last actions of the
process. With --sabotage the line before the last says whether the mistake has done its harm, as
text or as JSON.
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

std::chrono::milliseconds milliseconds_of(std::string_view option, const std::string& text) {
  return std::chrono::milliseconds(number(option, text, 1, 3'600'000));
}

std::string mistake(const std::string& name) {
  std::string names;
  for (const protocol::MistakeName& known : protocol::kMistakes) {
    if (known.name == name) return name;
    names += " " + std::string(known.name);
  }
  throw std::invalid_argument("There is no mistake \"" + name + "\". There are:" + names + ".");
}

// One that takes no value; null: there is none.
bool* find_flag(Options& options, const std::string& option) {
  if (option == "--json") return &options.json;
  if (option == "--verbose") return &options.verbose;
  if (option == "--harmless") return &options.harmless;
  return nullptr;
}

// False: there is no such option.
bool take(Options& options, const std::string& option, const std::string& value) {
  constexpr std::uint64_t kMany = 1'000'000'000;
  if (option == "--seed") {
    options.seed = number(option, value, 0, ~std::uint64_t{0});
  } else if (option == "--kills") {
    options.kills = number(option, value, 1, kMany);
  } else if (option == "--consumers") {
    options.consumers = static_cast<std::uint32_t>(number(option, value, 1, 32));
  } else if (option == "--producers") {
    options.producers = static_cast<std::uint32_t>(number(option, value, 1, 4));
  } else if (option == "--spares") {
    options.spares = static_cast<std::uint32_t>(number(option, value, 0, 8));
  } else if (option == "--device") {
    if (value != "simulated" && value != "cuda") {
      throw std::invalid_argument("The device is simulated or cuda, not \"" + value + "\".");
    }
    options.device = value;
  } else if (option == "--seconds") {
    options.at_most = std::chrono::seconds(number(option, value, 1, 1'000'000));
  } else if (option == "--settle") {
    options.settle_every = number(option, value, 1, kMany);
  } else if (option == "--lifetime") {
    options.lifetime = milliseconds_of(option, value);
  } else if (option == "--deadline") {
    options.deadline = milliseconds_of(option, value);
  } else if (option == "--sabotage") {
    options.sabotage = mistake(value);
  } else {
    return false;
  }
  return true;
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
    if (bool* flag = find_flag(options, option)) {
      *flag = true;
      continue;
    }
    const bool has_value = i + 1 < argc;
    if (!take(options, option, has_value ? argv[i + 1] : "1")) {
      throw std::invalid_argument("There is no option \"" + option + "\"; --help lists them.");
    }
    if (!has_value) throw std::invalid_argument(option + " lacks its value.");
    ++i;
  }
  if (options.harmless && options.sabotage.empty()) {
    throw std::invalid_argument("--harmless goes with --sabotage.");
  }
  if (options.lifetime.count() == 0) {
    options.lifetime = std::chrono::milliseconds(options.device == "cuda" ? 400 : 60);
  }
  if (options.spares == kAsTheDevice) options.spares = options.device == "cuda" ? 3 : 0;
  if (options.settle_every == 0) options.settle_every = sabotage_of(options.sabotage).settle_every;
  return options;
}

}  // namespace limbo::killmatrix
