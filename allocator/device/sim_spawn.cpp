#include "allocator/device/sim_spawn.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <spawn.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <vector>

#include "allocator/device/sim_companion.h"
#include "allocator/error.h"
#include "allocator/options.h"

namespace limbo::sim {

namespace {

const Option kDevices({.name = "sim_devices",
                       .unit = "",
                       .minimum = 1,
                       .maximum = kMaxDevices,
                       .default_value = 1,
                       .meaning = "GPUs of a simulated machine; read when the machine is made"});
const Option kMemory({.name = "sim_memory_mb",
                      .unit = "MiB",
                      .minimum = 2,
                      .maximum = 1 << 20,
                      .default_value = 2048,
                      .meaning = "memory of each simulated GPU; read when the machine is made"});

[[noreturn]] void fail_to_spawn(const std::string& what, int error) {
  throw Error(ErrorCode::kDeviceError, what + " failed: " + std::strerror(error) + ".");
}

std::string environment(const char* name) {
  const char* const text = std::getenv(name);
  return text == nullptr ? std::string() : std::string(text);
}

std::string runtime_directory() {
  if (auto named = environment("LIMBO_RUNTIME_DIR"); !named.empty()) return named;
  if (const auto xdg = environment("XDG_RUNTIME_DIR"); !xdg.empty()) return xdg + "/limbo";
  return "/tmp/limbo-" + std::to_string(::getuid());
}

// Others could put a file of their own in the machine's place.
void make_private(const std::string& directory) {
  if (::mkdir(directory.c_str(), 0700) != 0 && errno != EEXIST) {
    fail_to_spawn("Making the directory " + directory + " for the simulated machine", errno);
  }
  struct stat found {};
  if (::lstat(directory.c_str(), &found) != 0 || !S_ISDIR(found.st_mode) ||
      found.st_uid != ::geteuid()) {
    throw Error(ErrorCode::kDeviceError,
                directory +
                    " is not a directory of this user, so the simulated machine cannot be "
                    "there.",
                "Name another file with LIMBO_SIM_MACHINE.");
  }
}

// The folder of the library that holds this code.
std::filesystem::path library_folder() {
  Dl_info info{};
  if (::dladdr(reinterpret_cast<const void*>(&companion_program), &info) == 0 ||
      info.dli_fname == nullptr) {
    return {};
  }
  std::error_code ignored;
  return std::filesystem::absolute(info.dli_fname, ignored).parent_path();
}

}  // namespace

MachineChoice machine_from_environment() {
  MachineChoice choice;
  choice.path = environment("LIMBO_SIM_MACHINE");
  if (choice.path.empty()) {
    const std::string directory = runtime_directory();
    make_private(directory);
    choice.path = directory + "/sim-machine";
  }
  choice.path = std::filesystem::absolute(choice.path).string();
  choice.shape.devices = static_cast<std::uint32_t>(kDevices.value());
  choice.shape.memory_bytes = static_cast<std::uint64_t>(kMemory.value()) / 2 * kUnitBytes;
  return choice;
}

std::string companion_program() {
  constexpr const char* kName = "limbo_sim_companion";
  const std::string named = environment("LIMBO_SIM_COMPANION");
  std::vector<std::filesystem::path> candidates;
  if (!named.empty()) {
    candidates.emplace_back(named);
  } else {
    const auto folder = library_folder();
    candidates = {folder / kName, folder / ".." / "bin" / kName};
  }
  std::string tried;
  for (const auto& candidate : candidates) {
    if (::access(candidate.c_str(), X_OK) == 0) return candidate.string();
    tried += " " + candidate.string();
  }
  throw Error(ErrorCode::kDeviceError,
              "The simulated device's companion program was not found; tried:" + tried + ".",
              "Install it beside the library, or name it with LIMBO_SIM_COMPANION.");
}

void spawn_companion(int socket, const MachineChoice& choice) {
  const std::string program = companion_program();
  const std::string devices = std::to_string(choice.shape.devices);
  const std::string memory = std::to_string(choice.shape.memory_bytes);
  const std::array<const char*, 5> arguments{program.c_str(), choice.path.c_str(), devices.c_str(),
                                             memory.c_str(), nullptr};
  posix_spawn_file_actions_t actions;
  posix_spawnattr_t attributes;
  posix_spawn_file_actions_init(&actions);
  posix_spawnattr_init(&attributes);
  for (int fd = 0; fd < kCompanionSocket; ++fd) {
    posix_spawn_file_actions_addopen(&actions, fd, "/dev/null", O_RDWR, 0);
  }
  posix_spawn_file_actions_adddup2(&actions, socket, kCompanionSocket);
  sigset_t signals;
  sigemptyset(&signals);
  posix_spawnattr_setsigmask(&attributes, &signals);
  sigfillset(&signals);
  posix_spawnattr_setsigdefault(&attributes, &signals);
  posix_spawnattr_setflags(
      &attributes,
      static_cast<short>(POSIX_SPAWN_SETSID | POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF));
  pid_t intermediate = -1;
  const int error = ::posix_spawn(&intermediate, program.c_str(), &actions, &attributes,
                                  const_cast<char* const*>(arguments.data()), environ);
  posix_spawnattr_destroy(&attributes);
  posix_spawn_file_actions_destroy(&actions);
  if (error != 0) fail_to_spawn("Starting " + program, error);
  // It forks and ends at once. Someone else may have waited for it already (ECHILD): as well.
  while (::waitpid(intermediate, nullptr, 0) < 0 && errno == EINTR) {
  }
}

}  // namespace limbo::sim
