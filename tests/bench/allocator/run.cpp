#include "tests/bench/allocator/run.h"

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>

#include "tests/bench/allocator/crew.h"
#include "tests/bench/allocator/measure.h"
#include "tests/bench/allocator/options.h"
#include "tests/bench/allocator/subjects.h"
#include "tests/bench/allocator/workloads.h"
#include "tests/support/sandbox.h"

namespace limbo::bench {
namespace {

// `prefixes` has commas between them.
bool wanted(std::string_view name, std::string_view prefixes) {
  while (true) {
    const std::size_t end = prefixes.find(',');
    if (name.starts_with(prefixes.substr(0, end))) return true;
    if (end == std::string_view::npos) return false;
    prefixes.remove_prefix(end + 1);
  }
}

// Without a stream, as json_of is.
void write_file(const std::string& path, const std::string& text) {
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path.c_str(), "w"),
                                                             &std::fclose);
  if (file == nullptr || std::fwrite(text.data(), 1, text.size(), file.get()) != text.size() ||
      std::fflush(file.get()) != 0) {
    throw std::runtime_error(path + " cannot be written.");
  }
}

int run(const AllocatorOptions& options, char** argv) {
  prepare_environment(options, argv);
  if (options.device == "simulated") {
    ::setenv("LIMBO_DEVICE", "simulated", 1);
    ::setenv("LIMBO_SIM_MEMORY_MB", "16384", 0);  // the live sets; nothing of it is touched
  }
  const testing::Sandbox sandbox;
  choose_backend(options);
  Crew crew(kCrewSize, enter_thread);
  auto rows = options.core ? core_rows(crew) : torch_rows(crew);
  if (options.backend == "limbo" && !options.core) {
    for (Measurement& row : breakdown_rows()) rows.push_back(std::move(row));
  }
  std::erase_if(rows, [&](const Measurement& row) { return !wanted(row.name, options.only); });
  if (rows.empty()) throw std::invalid_argument("No row's name begins with " + options.only + ".");
  measure(rows, options.quick ? Pace{2, 0.001} : Pace{60, 0.004});
  std::printf("%s%s on %s\n%s", options.core ? "core of " : "", options.backend.c_str(),
              gpu_name().c_str(), table_of(rows).c_str());
  std::fflush(stdout);
  if (options.json.empty()) return 0;
  write_file(options.json, json_of(options.backend, gpu_name(), rows));
  return 0;
}

}  // namespace
}  // namespace limbo::bench

int limbo_bench_allocator(int argc, char** argv) {
  try {
    const auto options = limbo::bench::parse_allocator_options(argc, argv);
    return options ? limbo::bench::run(*options, argv) : 0;
  } catch (const std::invalid_argument& error) {
    std::fprintf(stderr, "limbo_bench_allocator: %s\n", error.what());
    return 2;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "limbo_bench_allocator: %s\n", error.what());
    return 1;
  }
}
