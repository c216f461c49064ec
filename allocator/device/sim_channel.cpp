#include "allocator/device/sim_channel.h"

#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

namespace limbo::sim {

namespace {
constexpr std::size_t kMaxDescriptors = 2;
}  // namespace

Descriptor& Descriptor::operator=(Descriptor&& other) noexcept {
  if (this != &other) {
    if (fd_ >= 0) ::close(fd_);
    fd_ = other.take();
  }
  return *this;
}

Descriptor::~Descriptor() {
  if (fd_ >= 0) ::close(fd_);
}

void Reply::set_error(std::string_view text) noexcept {
  const std::size_t length = std::min(text.size(), sizeof(error) - 1);
  std::memcpy(error, text.data(), length);
  error[length] = '\0';
}

bool send_message(int socket, const void* data, std::size_t size_bytes,
                  std::span<const int> descriptors) {
  iovec part{const_cast<void*>(data), size_bytes};
  alignas(cmsghdr) char control[CMSG_SPACE(kMaxDescriptors * sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  if (!descriptors.empty()) {
    message.msg_control = control;
    message.msg_controllen = CMSG_SPACE(descriptors.size_bytes());
    cmsghdr* const header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(descriptors.size_bytes());
    std::memcpy(CMSG_DATA(header), descriptors.data(), descriptors.size_bytes());
  }
  while (true) {
    const ssize_t sent = ::sendmsg(socket, &message, MSG_NOSIGNAL);
    if (sent >= 0) return static_cast<std::size_t>(sent) == size_bytes;
    if (errno != EINTR) return false;
  }
}

bool receive_message(int socket, void* data, std::size_t size_bytes,
                     std::vector<Descriptor>& descriptors) {
  iovec part{data, size_bytes};
  alignas(cmsghdr) char control[CMSG_SPACE(kMaxDescriptors * sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  ssize_t got = 0;
  do {
    got = ::recvmsg(socket, &message, MSG_CMSG_CLOEXEC);
  } while (got < 0 && errno == EINTR);
  if (got < 0) return false;
  // All have an owner before memory for any is asked for.
  std::array<Descriptor, kMaxDescriptors> received;
  std::size_t received_count = 0;
  for (cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr;
       header = CMSG_NXTHDR(&message, header)) {
    if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
    const std::size_t count = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (std::size_t i = 0; i < count && received_count < kMaxDescriptors; ++i) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(header) + i * sizeof(int), sizeof(int));
      received[received_count++] = Descriptor(fd);
    }
  }
  for (std::size_t i = 0; i < received_count; ++i) descriptors.push_back(std::move(received[i]));
  return static_cast<std::size_t>(got) == size_bytes;
}

}  // namespace limbo::sim
