#include "ipc/driver_files.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "ipc/owned_fd.h"

namespace limbo {
namespace {

// "/dev/nvidia0", "/dev/nvidiactl", "/dev/nvidia-uvm", ... and what the simulated device names so
// that it can be told from other files.
bool is_driver_link(const char* link) noexcept {
  return std::strncmp(link, "/dev/nvidia", 11) == 0 || std::strstr(link, "limbo-sim") != nullptr;
}

// The digits of `name` as a number; -1 if it is none.
int number_of(const char* name) noexcept {
  if (*name == '\0') return -1;
  int value = 0;
  for (; *name != '\0'; ++name) {
    if (*name < '0' || *name > '9' || value > 100'000'000) return -1;
    value = value * 10 + (*name - '0');
  }
  return value;
}

// Calls `visit(directory, name)` for every entry whose name is a number. False when the directory
// cannot be read.
template <typename Visit>
bool for_each_number(const char* path, Visit visit) noexcept {
  const OwnedFd directory(::open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!directory.valid()) return false;
  alignas(8) char buffer[4096];
  while (true) {
    const long got = ::syscall(SYS_getdents64, directory.get(), buffer, sizeof(buffer));
    if (got == 0) return true;
    if (got < 0) return false;
    for (long at = 0; at < got;) {
      // struct linux_dirent64: u64 inode, i64 offset, u16 length, u8 type, name
      std::uint16_t length = 0;
      std::memcpy(&length, buffer + at + 16, sizeof(length));
      const char* name = buffer + at + 19;
      if (const int number = number_of(name); number >= 0) visit(directory.get(), name, number);
      at += length;
    }
  }
}

DriverFiles files_below(const char* path) noexcept {
  DriverFiles files;
  files.readable = for_each_number(path, [&](int directory, const char* name, int fd) {
    char link[256];
    const ssize_t length = ::readlinkat(directory, name, link, sizeof(link) - 1);
    if (length < 0) return;  // closed meanwhile
    link[length] = '\0';
    if (is_driver_link(link) && (files.lowest < 0 || fd < files.lowest)) files.lowest = fd;
  });
  return files;
}

// Appends the digits of `value` and `tail` to `path`, which is long enough.
void append(char* path, long value, const char* tail) noexcept {
  char digits[24];
  std::size_t count = 0;
  do {
    digits[count++] = static_cast<char>('0' + value % 10);
    value /= 10;
  } while (value > 0);
  std::size_t at = std::strlen(path);
  while (count > 0) path[at++] = digits[--count];
  path[at] = '\0';
  std::strcat(path, tail);
}

// The parent of process `pid`, from the fourth field of its stat file; -1 if it cannot be read.
int parent_of(int pid) noexcept {
  char path[64] = "/proc/";
  append(path, pid, "/stat");
  const OwnedFd file(::open(path, O_RDONLY | O_CLOEXEC));
  char text[512];
  const ssize_t length = file.valid() ? ::read(file.get(), text, sizeof(text) - 1) : -1;
  if (length <= 0) return -1;
  text[length] = '\0';
  const char* after_name = std::strrchr(text, ')');  // the name may hold anything
  if (after_name == nullptr || std::strlen(after_name) < 5) return -1;
  int parent = 0;
  for (const char* digit = after_name + 4; *digit >= '0' && *digit <= '9'; ++digit) {
    parent = parent * 10 + (*digit - '0');
  }
  return parent;
}

bool descends_from(int pid, int ancestor) noexcept {
  for (int steps = 0; pid > 1 && steps < 64; ++steps) {
    pid = parent_of(pid);
    if (pid == ancestor) return true;
  }
  return false;
}

}  // namespace

DriverFiles own_driver_files() noexcept {
  return files_below("/proc/self/fd");
}

bool own_driver_file_below(int number) noexcept {
  const OwnedFd directory(::open("/proc/self/fd", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!directory.valid()) return true;
  for (int fd = 0; fd < number; ++fd) {
    char name[24] = "";
    append(name, fd, "");
    char link[256];
    const ssize_t length = ::readlinkat(directory.get(), name, link, sizeof(link) - 1);
    if (length < 0) continue;  // no such number
    link[length] = '\0';
    if (is_driver_link(link)) return true;
  }
  return false;
}

bool descendant_has_driver_files() noexcept {
  const int self = ::getpid();
  bool found = false;
  const bool readable = for_each_number("/proc", [&](int, const char*, int pid) {
    if (found || pid == self || !descends_from(pid, self)) return;
    char path[64] = "/proc/";
    append(path, pid, "/fd");
    found = files_below(path).any();
  });
  return found || !readable;
}

}  // namespace limbo
