// A place of its own for a test: runtime directory and simulated machine in a fresh folder.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace limbo::testing {

// Makes a folder under TMPDIR (else /tmp), points LIMBO_RUNTIME_DIR and LIMBO_SIM_MACHINE of this
// process (and so of its children) into it, and chooses the simulated device unless LIMBO_DEVICE is
// set. At its end it removes the folder and restores the environment.
//
// The support library's main makes one for the whole test executable, so no test ever meets the
// user's own runtime directory. A test whose processes must not see those of other tests makes
// another for itself.
class Sandbox {
 public:
  Sandbox();
  ~Sandbox();
  Sandbox(const Sandbox&) = delete;
  Sandbox& operator=(const Sandbox&) = delete;

  [[nodiscard]] const std::filesystem::path& path() const noexcept { return path_; }
  [[nodiscard]] std::filesystem::path runtime_dir() const { return path_ / "run"; }
  [[nodiscard]] std::filesystem::path sim_machine() const { return path_ / "sim"; }

 private:
  void set(const char* name, const std::string& value);

  std::filesystem::path path_;
  std::vector<std::pair<std::string, std::optional<std::string>>> saved_;
};

}  // namespace limbo::testing
