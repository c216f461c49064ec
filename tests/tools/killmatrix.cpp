// The kill matrix: every process of a sharing program is killed at every transition of the
// protocol, and nothing is lost, reused too early, or hung. `--help` says more; start reading at
// killmatrix/driver.h.
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>

#include "allocator/device/device.h"
#include "tests/support/balance.h"
#include "tests/support/sandbox.h"
#include "tests/tools/killmatrix/arena.h"
#include "tests/tools/killmatrix/driver.h"
#include "tests/tools/killmatrix/options.h"
#include "tests/tools/killmatrix/report.h"

namespace limbo::killmatrix {
namespace {

// Starts this program anew with the library that makes the mistake; none: with the same one.
void become_saboteur(const std::string& mistake, char** argv) {
  const char* made = std::getenv("LIMBO_MISTAKE");
  if (made != nullptr && mistake == made) return;
  if (std::string_view(LIMBO_WITH_MISTAKES_DIR).empty()) {
    std::fprintf(stderr, "This build has no library with mistakes: it is a sanitizer's.\n");
    std::exit(2);
  }
  setenv("LIMBO_MISTAKE", mistake.c_str(), 1);
  setenv("LD_LIBRARY_PATH", LIMBO_WITH_MISTAKES_DIR, 1);
  setenv("LIMBO_SIM_COMPANION", LIMBO_SIM_COMPANION_PROGRAM, 1);
  ::execv("/proc/self/exe", argv);
  std::perror("limbo_killmatrix: cannot start itself anew");
  std::exit(2);
}

std::uint64_t left_behind(const testing::Balance& before) {
  testing::Balance after = testing::Balance::now();
  // Who lends clears away what others were binding when they died, but not before it is a minute old.
  // And the folder of names and its lock are for all who come.
  std::erase_if(after.runtime_files, [](const std::string& name) {
    return name.ends_with(".sock.new") || name.ends_with("/names") ||
           name.ends_with("/names/.lock");
  });
  const std::string text = testing::left_behind(before, after);
  if (!text.empty()) std::fprintf(stderr, "left behind:\n%s", text.c_str());
  return static_cast<std::uint64_t>(std::count(text.begin(), text.end(), '\n'));
}

// Asked in a child, so that this process, which forks, has not so much as opened the driver.
bool there_is_cuda() {
  std::fflush(nullptr);
  const pid_t child = ::fork();
  if (child == 0) {
    std::string why;
    const bool available = cuda_available(&why);
    if (!available) std::printf("There is no CUDA device: %s\n", why.c_str());
    std::fflush(nullptr);
    ::_exit(available ? 0 : 1);
  }
  int status = 1;
  return child > 0 && ::waitpid(child, &status, 0) == child && status == 0;
}

int run(const Options& options) {
  setenv("LIMBO_DEVICE", options.device.c_str(), 1);
  if (options.device == "cuda" && !there_is_cuda()) return 1;
  // Other programs of this user are left alone.
  const testing::Sandbox sandbox;
  setenv("LIMBO_TEST_KERNELS", sandbox.path().c_str(), 1);
  Arena& arena = make_arena();
  const testing::Balance before = testing::Balance::now();
  const auto started = std::chrono::steady_clock::now();
  Result result;
  {
    Driver driver(options, arena);
    result = driver.run();
  }
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - started;
  return report(options, arena, result, left_behind(before), took.count()) ? 0 : 1;
}

int main_of(int argc, char** argv) {
  std::optional<Options> options;
  try {
    options = parse_options(argc, argv);
  } catch (const std::invalid_argument& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 2;
  }
  if (!options) return 0;
  if (!options->sabotage.empty()) {
    become_saboteur(options->harmless ? "" : options->sabotage, argv);
  }
  return run(*options);
}

}  // namespace
}  // namespace limbo::killmatrix

int main(int argc, char** argv) {
  try {
    return limbo::killmatrix::main_of(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "The kill matrix failed: %s\n", error.what());
    return 1;
  }
}
