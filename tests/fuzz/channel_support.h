// Descriptors that a broken process might send, and the other ends of what it keeps.
#pragma once

#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstddef>
#include <vector>

#include "ipc/life_line.h"
#include "ipc/owned_fd.h"
#include "tests/fuzz/target.h"

namespace limbo::fuzz {

inline constexpr int kAllSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

inline OwnedFd make_memfd(std::size_t size_bytes, int seals) {
  OwnedFd fd(::memfd_create("limbo-fuzz", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  require(fd.valid() && ::ftruncate(fd.get(), static_cast<off_t>(size_bytes)) == 0, "a memfd");
  if (seals != 0) require(::fcntl(fd.get(), F_ADD_SEALS, seals) == 0, "its seals");
  return fd;
}

// The far end of a life line; its near end goes to `kept`.
inline OwnedFd make_life_line(std::vector<OwnedFd>& kept) {
  const life_line::Ends ends = life_line::make_ends();
  require(ends.held >= 0, "a life line");
  kept.emplace_back(ends.held);
  return OwnedFd(ends.far);
}

// Anything that a descriptor can be; `own` is duplicated.
inline OwnedFd make_any(std::size_t kind, int own, std::vector<OwnedFd>& kept) {
  switch (kind % 8) {
    case 0:
      return OwnedFd(::open("/dev/null", O_RDWR | O_CLOEXEC));
    case 1:
      return OwnedFd(::open("/", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    case 2:
      return OwnedFd(::epoll_create1(EPOLL_CLOEXEC));
    case 3:
      return OwnedFd(::fcntl(own, F_DUPFD_CLOEXEC, 0));
    case 4: {
      int ends[2] = {-1, -1};
      require(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0, "a socket pair");
      kept.emplace_back(ends[1]);
      return OwnedFd(ends[0]);
    }
    case 5:
      return OwnedFd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));  // connected to nobody
    case 6:
      return make_memfd(4096, 0);
    default:
      return make_life_line(kept);
  }
}

}  // namespace limbo::fuzz
