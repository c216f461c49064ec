#include "allocator/options.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <functional>
#include <string>

#include "allocator/error.h"

namespace limbo {
namespace {

const Option kSample({"sample_for_tests_ms", "ms", 1, 100, 7, "Only there to be tested."});

std::string text_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kUnknownOption);
    return error.what();
  }
  return "nothing thrown";
}

TEST(Options, DefaultThenEnvironmentThenSet) {
  EXPECT_EQ(kSample.value(), 7);
  setenv("LIMBO_SAMPLE_FOR_TESTS_MS", "50", 1);
  EXPECT_EQ(kSample.value(), 50);
  set_option("sample_for_tests_ms", 9);
  EXPECT_EQ(kSample.value(), 9);
  unsetenv("LIMBO_SAMPLE_FOR_TESTS_MS");
}

TEST(Options, OutOfRangeNamesOptionAndRange) {
  EXPECT_EQ(text_of([] { set_option("sample_for_tests_ms", 0); }),
            "Option sample_for_tests_ms cannot be 0. Use a whole number from 1 to 100 (ms).");
}

TEST(Options, UnknownNameListsWhatThereIs) {
  const std::string text = text_of([] { set_option("no_such", 1); });
  EXPECT_NE(text.find("no_such"), std::string::npos);
  EXPECT_NE(text.find("sample_for_tests_ms"), std::string::npos);
}

TEST(Options, EnvironmentThatIsNoNumber) {
  static const Option other({"other_for_tests", "", 0, 1, 0, "Only there to be tested."});
  setenv("LIMBO_OTHER_FOR_TESTS", "yes", 1);
  EXPECT_EQ(text_of([] { (void)other.value(); }),
            "LIMBO_OTHER_FOR_TESTS is \"yes\". Use a whole number from 0 to 1.");
  unsetenv("LIMBO_OTHER_FOR_TESTS");
}

}  // namespace
}  // namespace limbo
