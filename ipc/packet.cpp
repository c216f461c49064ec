#include "ipc/packet.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "ipc/messages.h"

#ifndef SO_PEERPIDFD
#define SO_PEERPIDFD 77
#endif

namespace limbo {
namespace {

constexpr std::size_t kMaxDescriptors = 8;  // more than any message has

void take_descriptors(const msghdr& header, Packet& packet) {
  for (const cmsghdr* part = CMSG_FIRSTHDR(&header); part != nullptr;
       part = CMSG_NXTHDR(const_cast<msghdr*>(&header), const_cast<cmsghdr*>(part))) {
    if (part->cmsg_level != SOL_SOCKET || part->cmsg_type != SCM_RIGHTS) continue;
    const std::size_t count = (part->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (std::size_t index = 0; index < count; ++index) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(part) + index * sizeof(int), sizeof(int));
      packet.descriptors.emplace_back(fd);
    }
  }
}

}  // namespace

PacketStatus receive_packet(int socket, Packet& packet) {
  packet = Packet{};
  packet.bytes.resize(kMaxMessageBytes);
  packet.descriptors.reserve(kMaxDescriptors);
  alignas(cmsghdr) char control[CMSG_SPACE(kMaxDescriptors * sizeof(int))];
  iovec part{packet.bytes.data(), packet.bytes.size()};
  msghdr header{};
  header.msg_iov = &part;
  header.msg_iovlen = 1;
  header.msg_control = control;
  header.msg_controllen = sizeof(control);
  ssize_t got = -1;
  bool reset =
      false;  // told once: its end has left a message of ours unread; what it said is there
  do {
    got = ::recvmsg(socket, &header, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  } while (got < 0 && (errno == EINTR || (errno == ECONNRESET && !std::exchange(reset, true))));
  if (got < 0) {
    return errno == EAGAIN || errno == EWOULDBLOCK ? PacketStatus::kNothing : PacketStatus::kClosed;
  }
  take_descriptors(header, packet);
  packet.bytes.resize(static_cast<std::size_t>(got));
  packet.cut = (header.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) != 0;
  return got == 0 ? PacketStatus::kClosed : PacketStatus::kPacket;
}

bool send_packet(int socket, std::span<const std::byte> bytes,
                 std::span<const int> descriptors) noexcept {
  alignas(cmsghdr) char control[CMSG_SPACE(kMaxDescriptors * sizeof(int))] = {};
  if (descriptors.size() > kMaxDescriptors) {
    errno = EINVAL;
    return false;
  }
  iovec part{const_cast<std::byte*>(bytes.data()), bytes.size()};
  msghdr header{};
  header.msg_iov = &part;
  header.msg_iovlen = 1;
  if (!descriptors.empty()) {
    header.msg_control = control;
    header.msg_controllen = CMSG_SPACE(descriptors.size_bytes());
    cmsghdr* rights = CMSG_FIRSTHDR(&header);
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(descriptors.size_bytes());
    std::memcpy(CMSG_DATA(rights), descriptors.data(), descriptors.size_bytes());
  }
  ssize_t sent = -1;
  do {
    sent = ::sendmsg(socket, &header, MSG_DONTWAIT | MSG_NOSIGNAL);
  } while (sent < 0 && errno == EINTR);
  return sent == static_cast<ssize_t>(bytes.size());
}

PeerIdentity identify_peer(int socket) {
  PeerIdentity peer;
  ucred credentials{};
  socklen_t length = sizeof(credentials);
  if (::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &credentials, &length) != 0) {
    peer.uid = static_cast<uid_t>(-1);  // nobody
    return peer;
  }
  peer.pid = credentials.pid;
  peer.uid = credentials.uid;
  int pidfd = -1;
  length = sizeof(pidfd);
  if (::getsockopt(socket, SOL_SOCKET, SO_PEERPIDFD, &pidfd, &length) == 0) {
    peer.pidfd.reset(pidfd);
  } else if (errno == EINVAL || errno == ESRCH) {
    peer.ended = true;  // and its pid may be somebody else's by now
  } else if (credentials.pid > 0) {
    peer.pidfd.reset(static_cast<int>(::syscall(SYS_pidfd_open, credentials.pid, 0)));
  }
  return peer;
}

bool ends_within(int pidfd, std::chrono::milliseconds at_most) noexcept {
  pollfd entry{pidfd, POLLIN, 0};
  return ::poll(&entry, 1, static_cast<int>(at_most.count())) > 0;
}

bool is_readable(int fd) noexcept {
  pollfd entry{fd, POLLIN, 0};
  return ::poll(&entry, 1, 0) > 0 && entry.revents != 0;
}

}  // namespace limbo
