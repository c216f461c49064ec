#include "tests/tools/killmatrix/mail.h"

#include <sys/socket.h>
#include <sys/uio.h>

#include <array>
#include <cstring>
#include <stdexcept>

namespace limbo::killmatrix {
namespace {

constexpr std::size_t kMostBytes = 8192;

}  // namespace

Post::Post(std::uint32_t slots) {
  for (std::uint32_t slot = 0; slot < slots; ++slot) {
    int ends[2];
    if (::socketpair(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) != 0) {
      throw std::runtime_error("an inbox cannot be made");
    }
    boxes_.push_back({OwnedFd(ends[0]), OwnedFd(ends[1])});
  }
}

bool Post::send(std::uint32_t slot, const Mail& mail) noexcept {
  Letter letter = mail.letter;
  std::array<iovec, 2> parts{
      iovec{&letter, sizeof(letter)},
      iovec{const_cast<std::byte*>(mail.descriptor.data()), mail.descriptor.size()}};
  msghdr message{};
  message.msg_iov = parts.data();
  message.msg_iovlen = parts.size();
  return ::sendmsg(boxes_[slot].write_end.get(), &message, MSG_NOSIGNAL) >= 0;
}

std::optional<Mail> Post::take(std::uint32_t slot) {
  std::array<std::byte, kMostBytes> bytes;
  const ssize_t got = ::recv(boxes_[slot].read_end.get(), bytes.data(), bytes.size(), 0);
  if (got < static_cast<ssize_t>(sizeof(Letter))) return std::nullopt;
  Mail mail;
  std::memcpy(&mail.letter, bytes.data(), sizeof(Letter));
  mail.descriptor.assign(bytes.begin() + sizeof(Letter), bytes.begin() + got);
  return mail;
}

}  // namespace limbo::killmatrix
