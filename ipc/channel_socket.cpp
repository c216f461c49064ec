#include "ipc/channel_socket.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <string_view>
#include <utility>
#include <vector>

#include "allocator/error.h"
#include "ipc/directory_entries.h"
#include "ipc/packet.h"

namespace limbo {
namespace {

constexpr std::string_view kSuffix = ".sock";
constexpr std::string_view kNewSuffix = ".new";
constexpr std::time_t kUnfinishedAfterSeconds =
    60;  // a name that somebody is still binding is younger
constexpr int kBacklog = 128;

[[noreturn]] void no_socket(const RuntimeDirectory& directory, const char* call) {
  throw Error(ErrorCode::kNoChannel,
              "No socket can be made in " + directory.path() + ": " + call + ": " +
                  std::strerror(errno) + ".",
              "Set LIMBO_RUNTIME_DIR to a directory on a local file system.");
}

OwnedFd make_socket() {
  return OwnedFd(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
}

const sockaddr* generic(const sockaddr_un& address) {
  return reinterpret_cast<const sockaddr*>(&address);
}

bool old_enough(const RuntimeDirectory& directory, const std::string& name) {
  struct stat facts {};
  return ::fstatat(directory.fd(), name.c_str(), &facts, AT_SYMLINK_NOFOLLOW) == 0 &&
         facts.st_ctime + kUnfinishedAfterSeconds < std::time(nullptr);
}

std::vector<std::string> socket_names(const RuntimeDirectory& directory) {
  std::vector<std::string> names;
  for_each_entry(directory.fd(), [&](std::string name) {
    if (name.ends_with(kSuffix) || name.ends_with(kNewSuffix)) names.push_back(std::move(name));
  });
  return names;
}

}  // namespace

std::optional<pid_t> listener_pid(const RuntimeDirectory& directory, const std::string& name) {
  const OwnedFd socket = make_socket();
  if (!socket.valid()) return 0;
  const sockaddr_un address = directory.address(name);
  if (::connect(socket.get(), generic(address), sizeof(address)) != 0) {
    if (errno == ECONNREFUSED || errno == ENOENT) return std::nullopt;
    return 0;
  }
  const PeerIdentity listener = identify_peer(socket.get());
  if (listener.ended) return std::nullopt;
  // A fork child of the dead may hold the listener still.
  if (listener.pidfd.valid() && is_readable(listener.pidfd.get())) return std::nullopt;
  return listener.pid;
}

std::vector<std::string> producer_sockets(const RuntimeDirectory& directory) {
  std::vector<std::string> names = socket_names(directory);
  std::erase_if(names, [](const std::string& name) { return !producer_of_socket(name); });
  return names;
}

std::optional<Incarnation> producer_of_socket(std::string_view name) {
  constexpr std::size_t kDigits = 32;
  if (name.size() != kDigits + kSuffix.size() || !name.ends_with(kSuffix)) return std::nullopt;
  std::uint64_t halves[2] = {};
  for (std::size_t i = 0; i < kDigits; ++i) {
    const char c = name[i];
    const bool decimal = c >= '0' && c <= '9';
    if (!decimal && (c < 'a' || c > 'f')) return std::nullopt;
    auto& half = halves[i / 16];
    half = half << 4 | static_cast<std::uint64_t>(decimal ? c - '0' : c - 'a' + 10);
  }
  return Incarnation{halves[0], halves[1]};
}

OwnedFd listen_in(const RuntimeDirectory& directory, const std::string& name) {
  OwnedFd socket = make_socket();
  if (!socket.valid()) no_socket(directory, "socket");
  const std::string first_name = name + std::string(kNewSuffix);
  const sockaddr_un address = directory.address(first_name);
  if (::bind(socket.get(), generic(address), sizeof(address)) != 0) no_socket(directory, "bind");
  if (::listen(socket.get(), kBacklog) != 0 ||
      ::renameat(directory.fd(), first_name.c_str(), directory.fd(), name.c_str()) != 0) {
    const int failure = errno;
    ::unlinkat(directory.fd(), first_name.c_str(), 0);
    errno = failure;
    no_socket(directory, "listen");
  }
  return socket;
}

void remove_dead_sockets(const RuntimeDirectory& directory) noexcept {
  try {
    for (const std::string& name : socket_names(directory)) {
      if (name.ends_with(kNewSuffix) && !old_enough(directory, name)) continue;
      // A name is never used twice, so nobody can have taken it over since the look.
      if (!listener_pid(directory, name)) ::unlinkat(directory.fd(), name.c_str(), 0);
    }
  } catch (const std::exception&) {
    // Tidying up only: what stays behind does no harm.
  }
}

}  // namespace limbo
