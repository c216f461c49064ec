#include "ipc/shared_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>
#include <utility>

#include "allocator/error.h"

#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010
#endif

namespace limbo {
namespace {

[[noreturn]] void fail(const std::string& name, const std::string& what) {
  const int cause = errno;
  throw Error(ErrorCode::kNoChannel,
              "Shared memory \"" + name + "\": " + what + ": " +
                  std::generic_category().message(cause) + ".",
              "Check the limits on memory and open files of this process.");
}

int seals_for(ReceiverMay receiver) {
  const int common = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
  return receiver == ReceiverMay::kRead ? common | F_SEAL_FUTURE_WRITE : common;
}

}  // namespace

SharedMemory SharedMemory::create(const std::string& name, std::size_t size_bytes,
                                  ReceiverMay receiver) {
  SharedMemory memory;
  memory.fd_ = ::memfd_create(name.c_str(), MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (memory.fd_ < 0) fail(name, "memfd_create");
  if (::ftruncate(memory.fd_, static_cast<off_t>(size_bytes)) != 0) fail(name, "ftruncate");
  // Mapped before it is sealed: the seal on future writable mappings spares this one.
  memory.map(name, size_bytes, true);
  if (::fcntl(memory.fd_, F_ADD_SEALS, seals_for(receiver)) != 0) fail(name, "F_ADD_SEALS");
  return memory;
}

SharedMemory SharedMemory::map_received(const std::string& name, int fd, std::size_t size_bytes,
                                        ReceiverMay receiver) {
  SharedMemory memory;
  memory.fd_ = fd;
  struct stat status {};
  if (::fstat(fd, &status) != 0) fail(name, "fstat");
  if (static_cast<std::size_t>(status.st_size) != size_bytes) {
    throw Error(ErrorCode::kNoChannel,
                "Shared memory \"" + name + "\" has " + std::to_string(status.st_size) +
                    " bytes; its capacities ask for " + std::to_string(size_bytes) + ".",
                "The sender runs another version, or is broken.");
  }
  const int seals = ::fcntl(fd, F_GET_SEALS);
  if (seals < 0) fail(name, "F_GET_SEALS");
  if ((seals & seals_for(receiver)) != seals_for(receiver)) {
    throw Error(ErrorCode::kNoChannel,
                "Shared memory \"" + name + "\" lacks seals (it has " + std::to_string(seals) +
                    ", expected " + std::to_string(seals_for(receiver)) + ").",
                "The sender runs another version, or is broken.");
  }
  memory.map(name, size_bytes, receiver == ReceiverMay::kWrite);
  return memory;
}

void SharedMemory::map(const std::string& name, std::size_t size_bytes, bool writable) {
  void* data = ::mmap(nullptr, size_bytes, writable ? PROT_READ | PROT_WRITE : PROT_READ,
                      MAP_SHARED, fd_, 0);
  if (data == MAP_FAILED) fail(name, "mmap of " + std::to_string(size_bytes) + " bytes");
  data_ = data;
  size_bytes_ = size_bytes;
  writable_ = writable;
  if (::madvise(data_, size_bytes_, MADV_DONTFORK) != 0) fail(name, "MADV_DONTFORK");
}

SharedMemory::~SharedMemory() {
  reset();
}

SharedMemory::SharedMemory(SharedMemory&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)),
      size_bytes_(std::exchange(other.size_bytes_, 0)),
      fd_(std::exchange(other.fd_, -1)),
      writable_(other.writable_) {}

SharedMemory& SharedMemory::operator=(SharedMemory&& other) noexcept {
  if (this == &other) return *this;
  reset();
  data_ = std::exchange(other.data_, nullptr);
  size_bytes_ = std::exchange(other.size_bytes_, 0);
  fd_ = std::exchange(other.fd_, -1);
  writable_ = other.writable_;
  return *this;
}

void SharedMemory::leave_mapped() noexcept {
  data_ = nullptr;
  reset();
}

void SharedMemory::reset() noexcept {
  if (data_ != nullptr) ::munmap(data_, size_bytes_);
  if (fd_ >= 0) ::close(fd_);
  data_ = nullptr;
  fd_ = -1;
}

}  // namespace limbo
