#include "ipc/runtime_directory.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "allocator/error.h"
#include "ipc/channel_socket.h"
#include "tests/support/sandbox.h"

namespace limbo {
namespace {

class RuntimeDirectoryTest : public ::testing::Test {
 protected:
  void use(const std::filesystem::path& path) {
    ASSERT_EQ(::setenv("LIMBO_RUNTIME_DIR", path.c_str(), 1), 0);
  }
  static std::string refusal() {
    try {
      (void)RuntimeDirectory::open_own();
    } catch (const Error& failure) {
      EXPECT_EQ(failure.code(), ErrorCode::kNoChannel);
      return failure.what();
    }
    return {};
  }
  testing::Sandbox sandbox;
};
TEST_F(RuntimeDirectoryTest, IsMadeForThisUserAlone) {
  use(sandbox.path() / "fresh");
  const auto directory = RuntimeDirectory::open_own();
  struct stat facts {};
  ASSERT_EQ(::fstat(directory.fd(), &facts), 0);
  EXPECT_EQ(facts.st_mode & 0777, 0700U);
  EXPECT_EQ(RuntimeDirectory::open_existing(directory.path()).path(), directory.path());
}

TEST_F(RuntimeDirectoryTest, SymbolicLinksFilesAndOpenDirectoriesAreRefused) {
  const auto real = sandbox.path() / "real";
  ASSERT_EQ(::mkdir(real.c_str(), 0700), 0);
  std::filesystem::create_symlink(real, sandbox.path() / "link");
  use(sandbox.path() / "link");
  EXPECT_NE(refusal().find("symbolic link"), std::string::npos);
  std::ofstream(sandbox.path() / "file") << "x";
  use(sandbox.path() / "file");
  EXPECT_NE(refusal().find("Not a directory"), std::string::npos);
  ASSERT_EQ(::chmod(real.c_str(), 0755), 0);
  use(real);
  EXPECT_NE(refusal().find("chmod 700"), std::string::npos);
  use(sandbox.path() / "missing" / "deeper");
  EXPECT_NE(refusal().find((sandbox.path() / "missing" / "deeper").string()), std::string::npos);
}

TEST_F(RuntimeDirectoryTest, LongPathsWork) {
  const auto path = sandbox.path() / std::string(200, 'd');
  use(path);
  const auto directory = RuntimeDirectory::open_own();
  const OwnedFd listener = listen_in(directory, "long.sock");
  OwnedFd socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  const sockaddr_un where = directory.address("long.sock");
  EXPECT_EQ(::connect(socket.get(), reinterpret_cast<const sockaddr*>(&where), sizeof(where)), 0);
}

TEST_F(RuntimeDirectoryTest, FallsBackWhereTheSessionHasNone) {
  ::unsetenv("LIMBO_RUNTIME_DIR");
  const char* session = std::getenv("XDG_RUNTIME_DIR");
  const std::string saved = session != nullptr ? session : "";
  ::setenv("XDG_RUNTIME_DIR", sandbox.path().c_str(), 1);
  EXPECT_EQ(RuntimeDirectory::open_own().path(), (sandbox.path() / "limbo").string());
  ::setenv("XDG_RUNTIME_DIR", "/nonexistent", 1);
  EXPECT_EQ(RuntimeDirectory::open_own().path(), "/tmp/limbo-" + std::to_string(::geteuid()));
  if (saved.empty()) {
    ::unsetenv("XDG_RUNTIME_DIR");
  } else {
    ::setenv("XDG_RUNTIME_DIR", saved.c_str(), 1);
  }
}

}  // namespace
}  // namespace limbo
