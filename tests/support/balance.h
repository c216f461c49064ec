// What a test must not leave behind: descriptors, shared memory, mappings, files.
#pragma once

#include <gtest/gtest.h>

#include <set>
#include <string>

namespace limbo::testing {

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
