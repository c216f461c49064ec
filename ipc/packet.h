// One packet of a Unix socket, with the descriptors that came beside it; and who is at the other
// end. Nothing here blocks.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstddef>
#include <span>
#include <vector>

#include "ipc/owned_fd.h"

namespace limbo {

struct Packet {
  std::vector<std::byte> bytes;
  std::vector<OwnedFd> descriptors;  // close-on-exec
  bool cut = false;                  // longer, or with more descriptors, than any message
};

enum class PacketStatus { kPacket, kNothing, kClosed };

// Reads one packet. kClosed: end-of-file or an error of the connection. (An empty packet reads as
// end-of-file: nobody sends one.)
[[nodiscard]] PacketStatus receive_packet(int socket, Packet& packet);

// False: the other side is closed or takes no more; errno says which.
[[nodiscard]] bool send_packet(int socket, std::span<const std::byte> bytes,
                               std::span<const int> descriptors = {}) noexcept;

struct PeerIdentity {
  pid_t pid = 0;  // for people only; 0 where it is of another pid namespace
  uid_t uid = 0;
  OwnedFd pidfd;       // readable when the process has ended; invalid where there can be none
  bool ended = false;  // it has ended and been reaped, and the kernel has no pidfd for it any more
};

// Who connected, or who listens: the process that did so, also if it has ended meanwhile. The pidfd
// comes from SO_PEERPIDFD; on kernels before 6.5 from pidfd_open, which a pid that was reused in
// between can mislead.
[[nodiscard]] PeerIdentity identify_peer(int socket);

// A dying process's descriptors are closed, and its memory goes, before its pidfd is readable: who
// meets a closed connection waits so long for the pidfd before it believes that the process lives.
inline constexpr std::chrono::milliseconds kUntilDeathIsSeen{250};
[[nodiscard]] bool ends_within(int pidfd, std::chrono::milliseconds at_most) noexcept;

// Whether `fd` is readable, or closed at the other end, now.
[[nodiscard]] bool is_readable(int fd) noexcept;

}  // namespace limbo
