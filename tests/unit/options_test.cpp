#include "allocator/options.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <functional>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "allocator/error.h"

namespace limbo {
namespace {

const Option kSample({"sample_for_tests_ms", "ms", 1, 100, 7, "Only there to be tested."});

std::string text_of(const std::function<void()>& call,
                    ErrorCode expected = ErrorCode::kUnknownOption) {
  try {
    call();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), expected);
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
  const std::string text = "LIMBO_OTHER_FOR_TESTS is \"yes\". Use a whole number from 0 to 1.";
  EXPECT_EQ(text_of([] { (void)other.value(); }), text);
  EXPECT_EQ(text_of(require_readable_options), text);
  EXPECT_EQ(other.value_or_default(), 0);
  const OptionSetting one{"other_for_tests", 1};
  const auto before = set_options({&one, 1});
  require_readable_options();
  EXPECT_EQ(other.value_or_default(), 1);
  restore_options(before);
  EXPECT_EQ(text_of(require_readable_options), text);
  unsetenv("LIMBO_OTHER_FOR_TESTS");
  require_readable_options();
}

TEST(Options, MultiplesOnly) {
  static const Option eights({.name = "eights_for_tests",
                              .unit = "",
                              .minimum = 8,
                              .maximum = 64,
                              .default_value = 16,
                              .meaning = "Only there to be tested.",
                              .multiple_of = 8});
  const std::string advice = "Use a whole number from 8 to 64, a multiple of 8.";
  EXPECT_EQ(text_of([] { set_option("eights_for_tests", 12); }),
            "Option eights_for_tests cannot be 12. " + advice);
  setenv("LIMBO_EIGHTS_FOR_TESTS", "20", 1);
  EXPECT_EQ(text_of([] { (void)eights.value(); }), "LIMBO_EIGHTS_FOR_TESTS is \"20\". " + advice);
  setenv("LIMBO_EIGHTS_FOR_TESTS", "24", 1);
  EXPECT_EQ(eights.value(), 24);
  unsetenv("LIMBO_EIGHTS_FOR_TESTS");
}

TEST(Options, AllOfThemOrNone) {
  set_option("sample_for_tests_ms", 9);
  for (const OptionSetting& wrong :
       {OptionSetting{"no_such", 1}, OptionSetting{"sample_for_tests_ms", 101}}) {
    const std::vector<OptionSetting> settings{{"sample_for_tests_ms", 10}, wrong};
    EXPECT_NE(text_of([&] { set_options(settings); }), "nothing thrown");
    EXPECT_EQ(kSample.value(), 9);
  }
  const std::vector<OptionSetting> twice{{"sample_for_tests_ms", 10}, {"sample_for_tests_ms", 11}};
  const auto before = set_options(twice);
  EXPECT_EQ(kSample.value(), 11);
  restore_options(before);
  EXPECT_EQ(kSample.value(), 9);
}

TEST(Options, WhatIsReadForGoodCannotBeSet) {
  set_option("sample_for_tests_ms", 9);
  {
    const FixedOptions fixed({"sample_for_tests_ms"}, "The sample is taken");
    EXPECT_NE(text_of([] { set_option("sample_for_tests_ms", 8); }, ErrorCode::kAlreadyInUse), "");
  }
  set_option("sample_for_tests_ms", 8);  // its reader failed
  static const Option other({"fixed_for_tests", "", 0, 99, 0, "Only there to be tested."});
  setenv("LIMBO_FIXED_FOR_TESTS", "5", 1);
  FixedOptions fixed({"fixed_for_tests"}, "The sample is taken");
  fixed.stay();
  unsetenv("LIMBO_FIXED_FOR_TESTS");
  EXPECT_EQ(other.value(), 5);
  set_option("fixed_for_tests", 5);
  EXPECT_EQ(text_of([] { set_option("fixed_for_tests", 6); }, ErrorCode::kAlreadyInUse),
            "The sample is taken, and option fixed_for_tests stays 5. Set it before that, or by "
            "LIMBO_FIXED_FOR_TESTS in the environment.");
  setenv("LIMBO_FIXED_FOR_TESTS", "many", 1);
  require_readable_options();
  unsetenv("LIMBO_FIXED_FOR_TESTS");
}

TEST(Options, WhatCannotBeReadIsNotFixed) {
  static const Option other({"unread_for_tests", "", 0, 99, 0, "Only there to be tested."});
  setenv("LIMBO_UNREAD_FOR_TESTS", "many", 1);
  EXPECT_NE(text_of([] { FixedOptions({"unread_for_tests"}, "The sample is taken").stay(); }), "");
  unsetenv("LIMBO_UNREAD_FOR_TESTS");
  set_option("unread_for_tests", 7);
  EXPECT_EQ(other.value(), 7);
}

// A fork may come while another thread reads one.
TEST(Options, AreReadableInAForkChild) {
  std::atomic<bool> over{false};
  std::thread reader([&] {
    while (!over) require_readable_options();
  });
  int failed = 0;
  for (int fork_number = 0; fork_number < 50; ++fork_number) {
    const pid_t child = ::fork();
    if (child == 0) {
      ::alarm(5);  // it ends by that where the reading never does
      ::_exit(kSample.value() > 0 && !option_table().empty() ? 0 : 1);
    }
    int status = -1;
    if (::waitpid(child, &status, 0) != child || status != 0) ++failed;
  }
  over = true;
  reader.join();
  EXPECT_EQ(failed, 0);
}

}  // namespace
}  // namespace limbo
