#include "ipc/runtime_directory.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "allocator/error.h"

namespace limbo {
namespace {

// Opens `path` without following a last symbolic link and checks that it is this user's alone.
// Empty cause: it is.
OwnedFd open_checked(const std::string& path, std::string& cause) {
  OwnedFd fd(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  struct stat facts {};
  struct stat link {};
  if (!fd.valid()) {
    cause = std::strerror(errno);
    if (::lstat(path.c_str(), &link) == 0 && S_ISLNK(link.st_mode)) {
      cause = "it is a symbolic link";
    }
  } else if (::fstat(fd.get(), &facts) != 0) {
    cause = std::strerror(errno);
  } else if (facts.st_uid != ::geteuid()) {
    cause = "it belongs to user " + std::to_string(facts.st_uid) + ", not to " +
            std::to_string(::geteuid());
  } else if ((facts.st_mode & 077) != 0) {
    cause = "others can enter it (chmod 700 it)";
  }
  return fd;
}

// Makes `path` where it is missing; its parent must be there.
OwnedFd make_and_open(const std::string& path, std::string& cause) {
  if (::mkdir(path.c_str(), 0700) != 0 && errno != EEXIST) {
    cause = std::strerror(errno);
    return OwnedFd{};
  }
  return open_checked(path, cause);
}

std::string absolute(const std::string& path) {
  std::error_code failure;
  auto full = std::filesystem::absolute(path, failure).lexically_normal().string();
  while (full.size() > 1 && full.back() == '/') full.pop_back();
  return failure ? path : full;
}

[[noreturn]] void no_directory(const std::string& tried) {
  throw Error(ErrorCode::kNoChannel, "There is no usable runtime directory:" + tried + ".",
              "Set LIMBO_RUNTIME_DIR to a directory that only this user can enter.");
}

const char* variable(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr && *value != '\0' ? value : nullptr;
}

// What is searched, in order. `chosen`: the first was named for Limbo alone, and must be usable.
std::vector<std::string> search(bool& chosen) {
  std::vector<std::string> paths;
  const char* own = variable("LIMBO_RUNTIME_DIR");
  chosen = own != nullptr;
  if (own != nullptr) paths.push_back(absolute(own));
  if (const char* session = variable("XDG_RUNTIME_DIR")) {
    paths.push_back(absolute(std::string(session) + "/limbo"));
  }
  paths.push_back("/tmp/limbo-" + std::to_string(::geteuid()));
  return paths;
}

}  // namespace

RuntimeDirectory RuntimeDirectory::open_own() {
  bool chosen = false;
  std::string tried;
  for (const std::string& path : search(chosen)) {
    std::string cause;
    OwnedFd fd = make_and_open(path, cause);
    if (cause.empty()) return {path, std::move(fd)};
    tried += tried.empty() ? " " : "; ";
    tried.append(path).append(": ").append(cause);
    if (chosen) break;
  }
  no_directory(tried);
}

std::vector<RuntimeDirectory> RuntimeDirectory::all_existing() {
  bool chosen = false;
  std::vector<RuntimeDirectory> found;
  for (const std::string& path : search(chosen)) {
    const auto same = [&](const RuntimeDirectory& other) { return other.path() == path; };
    if (std::any_of(found.begin(), found.end(), same)) continue;
    std::string cause;
    OwnedFd fd = open_checked(path, cause);
    if (cause.empty()) found.push_back({path, std::move(fd)});
  }
  return found;
}

RuntimeDirectory RuntimeDirectory::open_existing(const std::string& path) {
  std::string cause;
  OwnedFd fd = open_checked(path, cause);
  if (!cause.empty()) {
    throw Error(ErrorCode::kNoChannel,
                "The sender's runtime directory " + path + " cannot be used: " + cause + ".",
                "Both processes must run as one user and see the same directory.");
  }
  return {path, std::move(fd)};
}

sockaddr_un RuntimeDirectory::address(std::string_view name) const {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::string path = "/proc/self/fd/" + std::to_string(fd_.get()) + "/";
  path += name;
  if (path.size() >= sizeof(address.sun_path)) {
    throw Error(ErrorCode::kNoChannel, "The socket's name \"" + std::string(name) +
                                           "\" is longer than a socket's address takes.");
  }
  std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
  return address;
}

}  // namespace limbo
