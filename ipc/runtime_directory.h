// The directory of the sockets: one that only this user can enter.
//
// Searched in one order everywhere: $LIMBO_RUNTIME_DIR (must be usable when it is set),
// $XDG_RUNTIME_DIR/limbo, /tmp/limbo-<uid>.
//
// Sockets in it are bound and connected through /proc/self/fd/<directory>/<name>, so that long
// paths work (a socket's address holds 107 bytes) and no component can be exchanged in between.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "ipc/owned_fd.h"

struct sockaddr_un;

namespace limbo {

class RuntimeDirectory {
 public:
  // The directory of this process, made (0700) if it is not there. Throws kNoChannel, with every
  // path that was tried and its cause.
  [[nodiscard]] static RuntimeDirectory open_own();

  // The directory that a descriptor names. Throws kNoChannel, with the path and the cause.
  [[nodiscard]] static RuntimeDirectory open_existing(const std::string& path);

  // Every directory of the search that is there and usable, in its order.
  [[nodiscard]] static std::vector<RuntimeDirectory> all_existing();

  [[nodiscard]] const std::string& path() const noexcept { return path_; }
  [[nodiscard]] int fd() const noexcept { return fd_.get(); }

  // The address of the socket `name` in it.
  [[nodiscard]] sockaddr_un address(std::string_view name) const;

 private:
  RuntimeDirectory(std::string path, OwnedFd fd) : path_(std::move(path)), fd_(std::move(fd)) {}

  std::string path_;
  OwnedFd fd_;
};

}  // namespace limbo
