// The main of the traces' suite.
//
//   limbo_trace_tests [GoogleTest's arguments]    every rule is kept: all must pass
//   limbo_trace_tests --finds MISTAKE             runs itself on the library that can make mistakes
//                                                 and passes when the mistake's suite fails, by an
//                                                 expectation of its own
//   limbo_trace_tests --finds none                runs all these suites on that library, which makes
//                                                 no mistake, and passes when they do
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
constexpr std::string_view kNone = "none";

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
  ::setenv("LIMBO_MISTAKE", mistake == kNone ? "" : mistake, 1);
  ::setenv("LD_LIBRARY_PATH", LIMBO_WITH_MISTAKES_DIR, 1);
  ::setenv("LIMBO_SIM_COMPANION", LIMBO_SIM_COMPANION_PROGRAM, 1);
  std::string option(kFindsHere);
  std::string name(mistake);
  char* arguments[] = {argv[0], option.data(), name.data(), nullptr};
  ::execv("/proc/self/exe", arguments);
  std::perror("limbo_trace_tests");
  return 1;
}

// The suites of one mistake, or of all.
std::string tests_of(std::string_view mistake) {
  if (mistake != kNone) return suite_of(mistake) + ".*";
  std::string all;
  for (const auto& entry : limbo::protocol::kMistakes) all += suite_of(entry.name) + ".*:";
  return all;
}

// How tests failed. What throws, in the test or in a support function, names no line of a trace: a
// library that is broken in any way does that.
class Failures : public ::testing::EmptyTestEventListener {
 public:
  void OnTestPartResult(const ::testing::TestPartResult& part) override {
    if (!part.failed()) return;
    const char* file = part.file_name();
    const bool of_trace =
        file != nullptr && std::string_view(file).find("/traces/") != std::string_view::npos;
    ++(of_trace ? of_traces : others);
  }

  int of_traces = 0;
  int others = 0;
};

int run_here(std::string_view mistake) {
  ::testing::GTEST_FLAG(filter) = tests_of(mistake);
  const limbo::testing::Sandbox sandbox;
  ::testing::UnitTest& all = *::testing::UnitTest::GetInstance();
  Failures failures;
  all.listeners().Append(&failures);
  const bool passed = RUN_ALL_TESTS() == 0;
  (void)all.listeners().Release(&failures);
  if (all.test_to_run_count() == 0) {
    std::printf("No test of suite %s: nobody looks for this mistake.\n", suite_of(mistake).c_str());
    return 1;
  }
  if (mistake == kNone) {
    std::printf("No mistake was made, and the traces %s.\n", passed ? "saw none" : "FAILED");
    return passed ? 0 : 1;
  }
  std::printf(
      "The mistake %.*s was %s: %d expectations of its traces failed, and %d things else.\n",
      static_cast<int>(mistake.size()), mistake.data(),
      failures.of_traces == 0 ? "NOT FOUND" : "found", failures.of_traces, failures.others);
  return failures.of_traces == 0 ? 1 : 0;
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
