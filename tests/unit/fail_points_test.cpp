#include "ipc/fail_points.h"

#include <gtest/gtest.h>

#include <chrono>
#include <csignal>
#include <set>
#include <string>

#include "allocator/error.h"
#include "ipc/fail_point_hooks.h"

namespace limbo {
namespace {

class FailPoints : public ::testing::Test {
 protected:
  ~FailPoints() override { set_fail_points(""); }

  static std::string refusal(const std::string& spec) {
    try {
      set_fail_points(spec);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kBadArgument);
      return error.what();
    }
    ADD_FAILURE() << "accepted: " << spec;
    return {};
  }
};

TEST_F(FailPoints, AreListedOnce) {
  std::set<std::string_view> names;
  for (const FailPointName& point : fail_point_names()) {
    EXPECT_TRUE(names.insert(point.name).second) << point.name;
    EXPECT_EQ(fail_point_index(point.name), names.size() - 1);
  }
  EXPECT_EQ(fail_point_index("claim.after"), kFailPointCount);
}

TEST_F(FailPoints, ErrorComesAtTheNthPassingOnly) {
  set_fail_points("share.after_pin=error@3");
  const auto pass = [] { LIMBO_FAIL_POINT("share.after_pin"); };
  EXPECT_NO_THROW(pass());
  EXPECT_NO_THROW(pass());
  EXPECT_THROW(pass(), Error);
  EXPECT_NO_THROW(pass());
  EXPECT_EQ(fail_point_passed("share.after_pin"), 4U);
}

TEST_F(FailPoints, DelayAtEveryPassing) {
  set_fail_points("claim.after_held=delay:2,share.after_open=delay:0");
  const auto before = std::chrono::steady_clock::now();
  for (int i = 0; i < 3; ++i) LIMBO_FAIL_POINT("claim.after_held");
  EXPECT_GE(std::chrono::steady_clock::now() - before, std::chrono::milliseconds(6));
}

TEST_F(FailPoints, HookActsOnceInThePassingThread) {
  int acted = 0;
  const auto pass = [] { LIMBO_FAIL_POINT("collect.after_note"); };
  at_fail_point("collect.after_note", [&] {
    ++acted;
    at_fail_point("collect.after_note", [&] { acted += 10; });
  });
  LIMBO_FAIL_POINT("collect.before_unlock");
  EXPECT_EQ(acted, 0);
  pass();
  EXPECT_EQ(acted, 1);
  pass();
  EXPECT_EQ(acted, 11);
  pass();
  EXPECT_EQ(acted, 11);
  at_fail_point("collect.after_note", [&] { ++acted; });
  at_fail_point("collect.after_note", {});
  pass();
  at_fail_point("collect.after_note", [&] { ++acted; });
  set_fail_points("");
  pass();
  EXPECT_EQ(acted, 11);
  EXPECT_THROW(at_fail_point("nowhere", [] {}), Error);
}

TEST_F(FailPoints, CrashKillsTheProcess) {
  EXPECT_EXIT(
      {
        set_fail_points("close.after_closing=crash@2");
        for (int i = 0; i < 2; ++i) LIMBO_FAIL_POINT("close.after_closing");
        std::_Exit(0);
      },
      ::testing::KilledBySignal(SIGKILL), "");
}

TEST_F(FailPoints, BadSpecsAreRefusedAndNameTheMistake) {
  EXPECT_NE(refusal("claim.after_hel=crash").find("claim.after_hel\""), std::string::npos);
  EXPECT_NE(refusal("claim.after_hel=crash").find("claim.after_held"), std::string::npos);
  EXPECT_NE(refusal("claim.after_held").find("no action"), std::string::npos);
  EXPECT_NE(refusal("claim.after_held=explode").find("unknown action"), std::string::npos);
  EXPECT_NE(refusal("claim.after_held=delay:x").find("\"x\""), std::string::npos);
  EXPECT_NE(refusal("claim.after_held=crash@0").find("passing 0"), std::string::npos);
  EXPECT_NE(refusal("claim.after_held=error").find("no error can be handled"), std::string::npos);
}

TEST_F(FailPoints, RefusedSpecLeavesTheSettingsAlone) {
  set_fail_points("share.after_pin=error");
  refusal("share.after_pin=delay:1,nonsense=crash");
  const auto pass = [] { LIMBO_FAIL_POINT("share.after_pin"); };
  EXPECT_THROW(pass(), Error);
}

}  // namespace
}  // namespace limbo
