// Replays recorded allocation traces on Limbo, or on PyTorch's native allocator, and says how much
// memory they took, how little would have done, and how long an event took.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "tests/support/sandbox.h"
#include "tests/support/trace.h"
#include "tests/tools/replay/options.h"
#include "tests/tools/replay/player.h"
#include "tests/tools/replay/report.h"

namespace limbo::replay {
namespace {

// A trace may need this much of what the allocator that it is compared with needs.
constexpr double kHoldTo = 1.01;

Result replay_one(Backend& backend, const Options& options, const std::filesystem::path& path) {
  const testing::Trace trace = testing::read_trace(path);
  Result result;
  result.trace = path.filename().string();
  result.trace.resize(std::min(result.trace.find(".trace"), result.trace.size()));
  result.threads = options.threads;
  const auto threads = static_cast<std::size_t>(options.threads);
  result.events = trace.events.size() * threads;
  result.requested_bytes = trace.peak_bytes * threads;
  result.limit_bytes =
      static_cast<std::size_t>(kHoldTo * options.hold_to * static_cast<double>(trace.peak_bytes));
  result.run = play(backend, trace, result.limit_bytes, options.threads);
  if (options.find_limit && result.run.completed) {
    result.smallest_limit_bytes = find_limit(backend, trace, result.run.peak_reserved_bytes);
  }
  return result;
}

int run(const Options& options) {
  setenv("LIMBO_DEVICE", options.device.c_str(), 1);
  // More than any trace takes; the simulated device keeps no memory that nobody writes to.
  const int memory_mb = 65'536 * options.threads;
  setenv("LIMBO_SIM_MEMORY_MB", std::to_string(memory_mb).c_str(), 0);
  const testing::Sandbox sandbox;
  std::vector<Result> results;
  const auto backend = options.backend == "limbo" ? make_limbo_backend() : make_native_backend();
  bool all_completed = true;
  for (const std::filesystem::path& path : options.traces) {
    results.push_back(replay_one(*backend, options, path));
    all_completed = all_completed && results.back().run.completed;
    if (options.json) {
      std::printf("%s\n", json_of(results.back(), options.device, options.backend).c_str());
      std::fflush(stdout);
    }
  }
  if (!options.json) std::fputs(table_of(results).c_str(), stdout);
  return all_completed ? 0 : 1;
}

int main_of(int argc, char** argv) {
  std::optional<Options> options;
  try {
    options = parse_options(argc, argv);
  } catch (const std::invalid_argument& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 2;
  }
  return options ? run(*options) : 0;
}

}  // namespace
}  // namespace limbo::replay

int main(int argc, char** argv) {
  try {
    return limbo::replay::main_of(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "Replaying failed: %s\n", error.what());
    return 1;
  }
}
