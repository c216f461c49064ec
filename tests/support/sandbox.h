// A place of its own for a test: runtime directory and simulated machine in a fresh folder, and the
// balance of what a test must not leave behind.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <optional>
#include <set>
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

// What a process and its runtime directory hold at one moment.
struct Balance {
  std::multiset<std::string> descriptors;     // what this process's descriptors are open on
  std::set<std::string> shared_memory;        // entries of /dev/shm named after Limbo
  std::set<std::string> runtime_files;        // everything in LIMBO_RUNTIME_DIR
  std::multiset<std::string> memfd_mappings;  // shared mappings of memfds and of /dev/shm

  [[nodiscard]] static Balance now();
};

// What `after` has and `before` has not, a line each; empty when nothing is left behind.
[[nodiscard]] std::string left_behind(const Balance& before, const Balance& after);

// Checks that nothing stays behind. What is made once per process and kept (the process's device,
// its sharing) must be there before SetUp ends: override warm_up.
class BalancedTest : public ::testing::Test {
 protected:
  void SetUp() override;
  // Waits (what other threads give back may take a moment), then fails the test.
  void TearDown() override;

  virtual void warm_up() {}

 private:
  Balance before_;
};

}  // namespace limbo::testing
