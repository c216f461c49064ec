// The main of the traces' suite.
//
//   limbo_trace_tests [GoogleTest's arguments]    every rule is kept: all must pass
//   limbo_trace_tests --finds MISTAKE             runs itself on the library that can make mistakes
//                                                 and passes when the mistake's suite fails
#include <gtest/gtest.h>
#include <unistd.h>

#include <cctype>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>

#include "ipc/protocol/mistakes.h"
#include "tests/support/child_process.h"
#include "tests/support/sandbox.h"

namespace {

constexpr std::string_view kFinds = "--finds";
constexpr std::string_view kFindsHere = "--finds-here";

// "dirty-first" -> "DirtyFirst": the suite of a mistake.
std::string suite_of(std::string_view mistake) {
  std::string suite;
  bool capital = true;
  for (const char letter : mistake) {
    if (letter == '-') {
      capital = true;
      continue;
    }
    suite += capital ? static_cast<char>(std::toupper(letter)) : letter;
    capital = false;
  }
  return suite;
}

// This program anew, with the other library in the place of the product's.
int run_with_mistake(char** argv, const char* mistake) {
  ::setenv("LIMBO_MISTAKE", mistake, 1);
  ::setenv("LD_LIBRARY_PATH", LIMBO_WITH_MISTAKES_DIR, 1);
  ::setenv("LIMBO_SIM_COMPANION", LIMBO_SIM_COMPANION_PROGRAM, 1);
  std::string option(kFindsHere);
  std::string name(mistake);
  char* arguments[] = {argv[0], option.data(), name.data(), nullptr};
  ::execv("/proc/self/exe", arguments);
  std::perror("limbo_trace_tests");
  return 1;
}

int run_here(std::string_view mistake) {
  ::testing::GTEST_FLAG(filter) = suite_of(mistake) + ".*";
  const limbo::testing::Sandbox sandbox;
  const bool passed = RUN_ALL_TESTS() == 0;
  const ::testing::UnitTest& all = *::testing::UnitTest::GetInstance();
  if (all.test_to_run_count() == 0) {
    std::printf("No test of suite %s: nobody looks for this mistake.\n", suite_of(mistake).c_str());
    return 1;
  }
  std::printf("The mistake %.*s was %s.\n", static_cast<int>(mistake.size()), mistake.data(),
              passed ? "NOT FOUND" : "found");
  return passed ? 1 : 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (const auto status = limbo::testing::run_child_role(argc, argv)) return *status;
  if (argc == 3 && argv[1] == kFinds) return run_with_mistake(argv, argv[2]);
  ::testing::InitGoogleTest(&argc, argv);
  ::setenv("LIMBO_DEVICE", "simulated", 1);
  if (argc == 3 && argv[1] == kFindsHere) return run_here(argv[2]);
  const limbo::testing::Sandbox sandbox;
  return RUN_ALL_TESTS();
}
