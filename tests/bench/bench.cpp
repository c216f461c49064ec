// limbo_bench: see README.md.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <exception>

#include "allocator/device/device.h"
#include "tests/bench/benchmarks.h"
#include "tests/bench/options.h"
#include "tests/bench/process.h"
#include "tests/bench/report.h"
#include "tests/bench/sends.h"
#include "tests/support/child_process.h"
#include "tests/support/child_roles.h"
#include "tests/support/sandbox.h"

namespace limbo::bench {
namespace {

std::string chosen_device(const Options& options) {
  if (options.device != "auto") return options.device;
  return cuda_available() ? "cuda" : "simulated";
}

int run_budgets(const Options& options, const Machine& machine) {
  Measurements results;
  bool worked = true;
  for (const Benchmark& benchmark : benchmarks()) {
    const bool wanted = options.only.empty() || std::find(options.only.begin(), options.only.end(),
                                                          benchmark.name) != options.only.end();
    if (!wanted) continue;
    std::fprintf(stderr, "%s: %s ...\n", benchmark.name.c_str(), benchmark.what.c_str());
    const auto start = Clock::now();
    try {
      for (Measurement& result : benchmark.run(Scale{options.quick})) {
        results.push_back(std::move(result));
      }
      std::fprintf(stderr, "  %.1f s\n", static_cast<double>(ns_since(start)) / 1e9);
    } catch (const std::exception& failure) {
      std::printf("%s FAILED: %s\n", benchmark.name.c_str(), failure.what());
      worked = false;
    }
  }
  std::printf("\n%s\n%s", text_of(machine).c_str(), text_of(results).c_str());
  if (!options.json.empty()) write_file(options.json, json_of(machine, results));
  return worked ? EXIT_SUCCESS : EXIT_FAILURE;
}

int run(int argc, char** argv) {
  std::optional<Options> options;
  try {
    options = parse_options(argc, argv);
  } catch (const std::invalid_argument& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 2;
  }
  if (!options) return EXIT_SUCCESS;
  setenv("LIMBO_DEVICE", chosen_device(*options).c_str(), 1);
  // Other programs of this user are left alone.
  const testing::Sandbox sandbox;
  const Machine machine = this_machine();
  const int status = options->sends ? run_sends(options->count, options->json, options->leak)
                                    : run_budgets(*options, machine);
  end_sharing();
  return status;
}

}  // namespace
}  // namespace limbo::bench

int main(int argc, char** argv) {
  if (const auto status = limbo::testing::run_child_role(argc, argv)) return *status;
  try {
    return limbo::bench::run(argc, argv);
  } catch (const std::exception& error) {
    std::fflush(stdout);
    std::fprintf(stderr, "limbo_bench failed: %s\n", error.what());
    return EXIT_FAILURE;
  }
}
