#include "tests/support/sandbox.h"

#include <stdlib.h>
#include <unistd.h>

#include <cstdlib>
#include <stdexcept>

namespace limbo::testing {
namespace {

namespace fs = std::filesystem;

fs::path fresh_folder() {
  const char* parent = std::getenv("TMPDIR");
  // Kept short: socket paths have room for 107 bytes.
  std::string name = std::string(parent != nullptr ? parent : "/tmp") + "/limbo-test-XXXXXX";
  if (mkdtemp(name.data()) == nullptr) throw std::runtime_error("mkdtemp of " + name + " failed");
  return name;
}

}  // namespace

Sandbox::Sandbox() : path_(fresh_folder()) {
  fs::create_directory(runtime_dir());
  fs::permissions(runtime_dir(), fs::perms::owner_all);
  set("LIMBO_RUNTIME_DIR", runtime_dir().string());
  set("LIMBO_SIM_MACHINE", sim_machine().string());
  if (std::getenv("LIMBO_DEVICE") == nullptr) set("LIMBO_DEVICE", "simulated");
}

Sandbox::~Sandbox() {
  for (const auto& [name, value] : saved_) {
    if (value) {
      setenv(name.c_str(), value->c_str(), 1);
    } else {
      unsetenv(name.c_str());
    }
  }
  std::error_code ignored;
  fs::remove_all(path_, ignored);
}

void Sandbox::set(const char* name, const std::string& value) {
  const char* old = std::getenv(name);
  saved_.emplace_back(name, old != nullptr ? std::optional<std::string>(old) : std::nullopt);
  setenv(name, value.c_str(), 1);
}

}  // namespace limbo::testing
