#include "tests/support/shared_words.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <stdexcept>

namespace limbo::testing {
namespace {

int checked(const char* call, int result) {
  if (result < 0) throw std::runtime_error(std::string(call) + ": " + std::strerror(errno));
  return result;
}

int sized_memfd(std::size_t size_bytes) {
  const int fd = checked("memfd_create", memfd_create("words", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  checked("ftruncate", ftruncate(fd, static_cast<off_t>(size_bytes)));
  return fd;
}

}  // namespace

SharedWords::SharedWords(Device& device, std::size_t size_bytes)
    : device_(device), size_bytes_(size_bytes), fd_(sized_memfd(size_bytes)) {
  map_and_register();
}

SharedWords::SharedWords(Device& device, const std::string& path, std::size_t size_bytes)
    : device_(device),
      size_bytes_(size_bytes),
      fd_(checked("open", open(path.c_str(), O_RDWR | O_CLOEXEC))) {
  map_and_register();
}

void SharedWords::map_and_register() {
  void* mapped = mmap(nullptr, size_bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, fd_, 0);
  if (mapped == MAP_FAILED) {
    close(fd_);
    throw std::runtime_error(std::string("mmap: ") + std::strerror(errno));
  }
  data_ = static_cast<std::uint64_t*>(mapped);
  try {
    device_.register_host_memory(0, {data_, size_bytes_, fd_, true});
  } catch (...) {
    munmap(data_, size_bytes_);
    close(fd_);
    throw;
  }
}

SharedWords::~SharedWords() {
  device_.unregister_host_memory(data_);
  munmap(data_, size_bytes_);
  close(fd_);
}

std::string SharedWords::path() const {
  return "/proc/" + std::to_string(getpid()) + "/fd/" + std::to_string(fd_);
}

}  // namespace limbo::testing
