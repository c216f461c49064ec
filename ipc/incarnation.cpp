#include "ipc/incarnation.h"

#include <fcntl.h>
#include <sys/random.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string_view>

#include "allocator/error.h"
#include "ipc/owned_fd.h"

namespace limbo {
namespace {

int hex_digit(char c) noexcept {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

// Where there is no such file there is none for anybody; a file that cannot be opened just now says
// nothing, and is asked again.
BootId read_boot_id() {
  constexpr char kFile[] = "/proc/sys/kernel/random/boot_id";
  const OwnedFd file(::open(kFile, O_RDONLY | O_CLOEXEC));
  if (!file.valid() && (errno == ENOENT || errno == EACCES || errno == EPERM)) return {};
  char bytes[64];
  const ssize_t length = file.valid() ? ::read(file.get(), bytes, sizeof(bytes)) : -1;
  if (length < 0) {
    throw Error(ErrorCode::kNoChannel,
                std::string("Cannot read ") + kFile + ": " + std::strerror(errno) + ".");
  }
  const std::string_view text(bytes, static_cast<std::size_t>(length));
  BootId boot{};
  std::size_t digits = 0;
  for (const char c : text) {
    const int digit = hex_digit(c);
    if (digit < 0 || digits >= 32) continue;
    auto& byte = boot[digits / 2];
    byte = static_cast<std::uint8_t>(byte << 4 | digit);
    ++digits;
  }
  return digits == 32 ? boot : BootId{};
}

}  // namespace

Incarnation random_incarnation() {
  Incarnation incarnation;
  while (incarnation == Incarnation{}) {
    std::uint64_t bits[2] = {};
    const ssize_t got = ::getrandom(bits, sizeof(bits), 0);
    if (got < 0 && errno == EINTR) continue;
    if (got != static_cast<ssize_t>(sizeof(bits))) {
      throw Error(ErrorCode::kInternal,
                  std::string("getrandom failed: ") + std::strerror(errno) + ".");
    }
    incarnation = {bits[0], bits[1]};
  }
  return incarnation;
}

std::string to_string(const Incarnation& incarnation) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  text.reserve(32);
  for (const std::uint64_t half : {incarnation.high, incarnation.low}) {
    for (int shift = 60; shift >= 0; shift -= 4) text += kDigits[(half >> shift) & 15];
  }
  return text;
}

const BootId& boot_id() {
  static const BootId boot = read_boot_id();
  return boot;
}

}  // namespace limbo
