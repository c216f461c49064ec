#include "tests/support/child_process.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>

#include "tests/support/balance.h"
#include "tests/support/eventually.h"
#include "tests/support/sandbox.h"

namespace limbo::testing {
namespace {

LIMBO_CHILD_ROLE(echo) {
  while (const auto line = child.try_receive()) child.send(child.argument(0) + *line);
  return 0;
}

LIMBO_CHILD_ROLE(complain) {
  std::fprintf(stderr, "nothing works today\n");
  std::printf("and this is no message\n");
  std::fflush(stdout);
  return 3;
}

LIMBO_CHILD_ROLE(tell_environment) {
  const char* value = std::getenv("LIMBO_TEST_WORD");
  child.send(value != nullptr ? value : "(unset)");
  return 0;
}

using ChildProcessTest = BalancedTest;

TEST_F(ChildProcessTest, ExchangesLinesAndBytes) {
  ChildProcess child("echo", {"> "});
  child.send("one");
  child.send("two");
  EXPECT_EQ(child.receive(), "> one");
  child.expect("> two");
  child.close_input();
  child.finish();
}

TEST_F(ChildProcessTest, ShowsWhatAFailingChildWrote) {
  ChildProcess child("complain");
  try {
    (void)child.receive();
    FAIL() << "a line came";
  } catch (const ChildFailed& failed) {
    const std::string text = failed.what();
    EXPECT_NE(text.find("exit status 3"), std::string::npos) << text;
    EXPECT_NE(text.find("nothing works today"), std::string::npos) << text;
    EXPECT_NE(text.find("and this is no message"), std::string::npos) << text;
  }
  EXPECT_EQ(child.wait().code, 3);
  EXPECT_THROW(child.finish(), ChildFailed);
}

TEST_F(ChildProcessTest, ReportsWhatDoesNotComeInTime) {
  ChildProcess child("echo", {""});
  EXPECT_THROW((void)child.receive(std::chrono::milliseconds(20)), ChildFailed);
  EXPECT_THROW(child.wait(std::chrono::milliseconds(20)), ChildFailed);
  child.send("still here");
  child.expect("still here");
}

TEST_F(ChildProcessTest, StopsResumesAndKills) {
  ChildProcess child("echo", {""});
  child.stop();
  child.send("x");
  EXPECT_THROW((void)child.receive(std::chrono::milliseconds(20)), ChildFailed);
  EXPECT_TRUE(child.running());
  child.resume();
  child.expect("x");
  const ChildEnd end = child.kill();
  EXPECT_TRUE(end.signalled);
  EXPECT_EQ(end.code, 9);
  EXPECT_FALSE(child.running());
}

TEST_F(ChildProcessTest, PassesAnEnvironment) {
  ChildProcess with("tell_environment", {}, {{{"LIMBO_TEST_WORD", "hello"}}});
  with.expect("hello");
  ChildProcess without("tell_environment", {}, {{{"LIMBO_TEST_WORD", std::nullopt}}});
  without.expect("(unset)");
}

TEST_F(ChildProcessTest, NamesTheRolesWhenOneIsMissing) {
  ChildProcess child("no_such_role");
  EXPECT_EQ(child.wait().code, 2);
  EXPECT_NE(child.output().find("echo"), std::string::npos) << child.output();
}

TEST(Hex, GoesBothWays) {
  const std::vector<std::byte> bytes{std::byte{0x00}, std::byte{0x9f}, std::byte{0xff}};
  EXPECT_EQ(to_hex(bytes), "009fff");
  EXPECT_EQ(from_hex("009fff"), bytes);
  EXPECT_THROW((void)from_hex("0"), std::invalid_argument);
  EXPECT_THROW((void)from_hex("0g"), std::invalid_argument);
}

TEST(Sandbox, IsAFolderOfItsOwnThatGoesAway) {
  std::filesystem::path path;
  const std::string before = std::getenv("LIMBO_RUNTIME_DIR");
  {
    Sandbox sandbox;
    path = sandbox.path();
    EXPECT_TRUE(std::filesystem::is_directory(sandbox.runtime_dir()));
    EXPECT_EQ(std::getenv("LIMBO_RUNTIME_DIR"), sandbox.runtime_dir().string());
  }
  EXPECT_FALSE(std::filesystem::exists(path));
  EXPECT_EQ(std::getenv("LIMBO_RUNTIME_DIR"), before);
}

TEST(Balance, SeesADescriptorLeftOpen) {
  const Balance before = Balance::now();
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  EXPECT_NE(left_behind(before, Balance::now()), "");
  close(ends[0]);
  close(ends[1]);
  EXPECT_EQ(left_behind(before, Balance::now()), "");
}

}  // namespace
}  // namespace limbo::testing
