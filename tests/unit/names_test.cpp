#include "ipc/names.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <memory>

#include "allocator/error.h"
#include "ipc/channel.h"
#include "ipc/channel_socket.h"
#include "ipc/fail_points.h"
#include "ipc/incarnation.h"
#include "tests/support/balance.h"
#include "tests/support/sandbox.h"
#include "tests/unit/short_host_memory.h"
#include "tests/unit/sim_support.h"

namespace limbo {
namespace {

namespace fs = std::filesystem;
using testing::ScopedVariable;

// A process that publishes, as far as names can tell: its socket listens.
struct Publisher {
  explicit Publisher(const RuntimeDirectory& in)
      : directory(in),
        socket(listen_in(directory, channel_socket_name(incarnation))),
        names(directory, incarnation) {}
  // Ends; what it has published stays behind.
  void die() { socket.reset(); }

  const RuntimeDirectory& directory;
  const Incarnation incarnation = random_incarnation();
  OwnedFd socket;
  OwnNames names;
};

class NamesTest : public ::testing::Test {
 protected:
  void TearDown() override { set_fail_points(""); }

  static ErrorCode code_of(const std::function<void()>& call) {
    try {
      call();
    } catch (const Error& error) {
      return error.code();
    }
    ADD_FAILURE() << "no error";
    return ErrorCode::kInternal;
  }
  // All but what others of this user publish meanwhile.
  [[nodiscard]] std::vector<std::string> listed() const {
    std::vector<std::string> names;
    for (const PublishedName& entry : list_names()) {
      if (entry.owner.directory.starts_with(sandbox_.path().string())) names.push_back(entry.name);
    }
    return names;
  }
  [[nodiscard]] fs::path folder() const { return fs::path(directory_.path()) / "names"; }

  const testing::Sandbox sandbox_;
  const RuntimeDirectory directory_ = RuntimeDirectory::open_own();
};

TEST_F(NamesTest, WhatIsPublishedIsFoundWithItsOwner) {
  Publisher one(directory_);
  EXPECT_FALSE(look_up_name("weights"));
  one.names.add("weights");
  const auto found = look_up_name("weights");
  ASSERT_TRUE(found);
  EXPECT_EQ(found->incarnation, one.incarnation);
  EXPECT_EQ(found->directory, directory_.path());
  EXPECT_EQ(found->pid, ::getpid());
  one.names.add("alpha");
  EXPECT_EQ(listed(), (std::vector<std::string>{"alpha", "weights"}));
  one.names.remove("weights");
  EXPECT_FALSE(look_up_name("weights"));
  one.names.remove("weights");  // once more: nothing happens
  EXPECT_EQ(listed(), (std::vector<std::string>{"alpha"}));
}

TEST_F(NamesTest, ANameOfTheLivingIsTakenAndTheErrorSaysByWhom) {
  Publisher one(directory_);
  Publisher other(directory_);
  one.names.add("weights");
  try {
    other.names.add("weights");
    FAIL() << "one name of two";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kNameTaken);
    EXPECT_NE(std::string(error.what()).find("process " + std::to_string(::getpid())),
              std::string::npos)
        << error.what();
  }
  EXPECT_EQ(code_of([&] { one.names.add("weights"); }), ErrorCode::kNameTaken);
  other.names.remove("weights");  // not its own
  ASSERT_TRUE(look_up_name("weights"));
  EXPECT_EQ(look_up_name("weights")->incarnation, one.incarnation);
}

TEST_F(NamesTest, ANameOfTheDeadIsPassedOverAndReplaced) {
  Publisher one(directory_);
  Publisher other(directory_);
  one.names.add("weights");
  one.die();
  EXPECT_FALSE(look_up_name("weights"));
  EXPECT_TRUE(listed().empty());
  other.names.add("weights");
  EXPECT_EQ(look_up_name("weights")->incarnation, other.incarnation);
  one.names.remove("weights");  // another's by now
  EXPECT_TRUE(look_up_name("weights"));
  // A socket that was tidied away is as dead as one that is refused.
  other.die();
  remove_dead_sockets(directory_);
  Publisher third(directory_);
  third.names.add("weights");
  EXPECT_EQ(look_up_name("weights")->incarnation, third.incarnation);
}

TEST_F(NamesTest, WhatIsNoLinkOfOursIsLeftAlone) {
  Publisher one(directory_);
  fs::create_directory(folder() / "folder");
  fs::create_symlink("/etc/passwd", folder() / "elsewhere");
  EXPECT_EQ(code_of([&] { one.names.add("folder"); }), ErrorCode::kNameTaken);
  EXPECT_EQ(code_of([&] { one.names.add("elsewhere"); }), ErrorCode::kNameTaken);
  EXPECT_FALSE(look_up_name("folder"));
  EXPECT_FALSE(look_up_name("elsewhere"));
  EXPECT_TRUE(listed().empty());
}

TEST_F(NamesTest, NamesThatCannotBeAreRefused) {
  Publisher one(directory_);
  const std::string longest(kMaxNameBytes, 'n');
  for (const std::string& bad : {std::string(), std::string("a/b"), std::string(".hidden"),
                                 longest + "n", std::string("a\0b", 3)}) {
    EXPECT_EQ(code_of([&] { one.names.add(bad); }), ErrorCode::kBadArgument) << bad;
    EXPECT_EQ(code_of([&] { one.names.remove(bad); }), ErrorCode::kBadArgument) << bad;
    EXPECT_EQ(code_of([&] { (void)look_up_name(bad); }), ErrorCode::kBadArgument) << bad;
  }
  one.names.add(longest);
  EXPECT_TRUE(look_up_name(longest));
  one.names.add("b\xC3\xA4r of two words");
  EXPECT_TRUE(look_up_name("b\xC3\xA4r of two words"));
}

TEST_F(NamesTest, AFailureOnTheWayLeavesTheNameFreeAndTheLockOpen) {
  Publisher one(directory_);
  for (const char* point : {"names.after_lock", "names.after_look", "names.before_rename"}) {
    set_fail_points(std::string(point) + "=error");
    EXPECT_THROW(one.names.add("weights"), Error) << point;
    set_fail_points("");
    EXPECT_FALSE(look_up_name("weights")) << point;
  }
  one.names.add("weights");
  set_fail_points("names.before_unlink=error");
  EXPECT_THROW(one.names.remove("weights"), Error);
  set_fail_points("");
  one.names.remove("weights");
  EXPECT_FALSE(look_up_name("weights"));
}

// Whoever died before its link had a name, and whoever has one on its way still.
TEST_F(NamesTest, WhatTheDeadWereMakingGoesWithTheNextName) {
  const auto unfinished = [&] {
    const fs::directory_iterator entries(folder());
    return std::count_if(begin(entries), end(entries), [](const fs::directory_entry& entry) {
      return entry.path().extension() == ".new";
    });
  };
  Publisher dead(directory_);
  Publisher living(directory_);
  for (Publisher* each : {&dead, &living}) {
    set_fail_points("names.before_rename=error");
    EXPECT_THROW(each->names.add("weights"), Error);
  }
  set_fail_points("");
  fs::create_symlink("/etc/passwd", folder() / ".elsewhere.new");
  EXPECT_EQ(unfinished(), 3);
  dead.die();
  Publisher other(directory_);
  other.names.add("weights");
  EXPECT_EQ(unfinished(), 2);
  living.names.add("biases");
  EXPECT_EQ(unfinished(), 1);
}

TEST_F(NamesTest, EveryDirectoryOfTheSearchIsLookedThrough) {
  const fs::path session = sandbox_.path() / "session";
  fs::create_directories(session / "limbo");
  fs::permissions(session / "limbo", fs::perms::owner_all);
  const ScopedVariable variable("XDG_RUNTIME_DIR", session.string());
  const auto second = RuntimeDirectory::open_existing((session / "limbo").string());
  Publisher one(directory_);
  Publisher other(second);
  other.names.add("theirs");
  other.names.add("both");
  one.names.add("both");  // another directory's names do not count
  EXPECT_EQ(look_up_name("theirs")->directory, second.path());
  EXPECT_EQ(look_up_name("both")->incarnation, one.incarnation);
  EXPECT_EQ(listed(), (std::vector<std::string>{"both", "theirs"}));
  one.die();
  EXPECT_EQ(look_up_name("both")->incarnation, other.incarnation);
}

TEST(ProducerOfSocket, IsWhatItsNameSays) {
  const Incarnation incarnation{0x0123'4567'89ab'cdefULL, 0xfedc'ba98'7654'3210ULL};
  const std::string name = channel_socket_name(incarnation);
  EXPECT_EQ(producer_of_socket(name), incarnation);
  EXPECT_FALSE(producer_of_socket(name + "x"));
  EXPECT_FALSE(producer_of_socket(name.substr(1)));
  EXPECT_FALSE(producer_of_socket("G" + name.substr(1)));
  EXPECT_FALSE(producer_of_socket("A" + name.substr(1)));  // there is one spelling
  EXPECT_FALSE(producer_of_socket(name.substr(0, 32) + ".lock"));
}

// Whatever looks into a folder closes it again.
TEST_F(NamesTest, HostMemoryThatRunsOutLeavesNoDescriptorOpen) {
  Publisher one(directory_);
  const std::string name(kMaxNameBytes, 'n');  // which takes memory
  const std::vector<std::pair<const char*, std::function<void()>>> calls = {
      {"publish", [&] { one.names.add(name); }},
      {"list", [] { (void)list_names(); }},
      {"list sockets", [&] { (void)producer_sockets(directory_); }},
      {"tidy", [&] { remove_dead_sockets(directory_); }},
      {"unpublish", [&] { one.names.remove(name); }},
  };
  const auto before = testing::Balance::now().descriptors;
  for (const auto& [what, call] : calls) {
    SCOPED_TRACE(what);
    // An Error, where it is another call's to say what failed.
    testing::with_ever_more_memory<std::exception>(
        call, [&] { ASSERT_EQ(testing::Balance::now().descriptors, before); });
  }
  EXPECT_FALSE(look_up_name(name));
}

}  // namespace
}  // namespace limbo
