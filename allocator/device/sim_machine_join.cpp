// Coming to a machine and leaving it: the file, its making and removal, and the life locks.
//
// Byte 0 of the file is the door: whoever makes, joins or leaves holds a record lock on it. Byte
// 1 + slot is the life lock of that slot's companion. Record locks end with their process, and
// fork children do not have them. (The companion has one descriptor of the file only: closing any
// other would give up its locks.)
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <random>

#include "allocator/device/sim_channel.h"
#include "allocator/device/sim_machine.h"
#include "allocator/device/sim_machine_lock.h"
#include "allocator/error.h"

namespace limbo::sim {

namespace {

constexpr std::uint64_t kMachineMagic = 0x314d'4948'434d'4953ULL;  // "SIMCHIM1"

[[noreturn]] void fail_to_join(const std::string& what, const std::string& path) {
  throw Error(ErrorCode::kDeviceError,
              what + " the simulated machine " + path + " failed: " + std::strerror(errno) + ".");
}

struct flock byte_lock(short type, off_t byte) {
  struct flock lock {};
  lock.l_type = type;
  lock.l_whence = SEEK_SET;
  lock.l_start = byte;
  lock.l_len = 1;
  return lock;
}

void take_byte(int fd, off_t byte, const std::string& path) {
  struct flock lock = byte_lock(F_WRLCK, byte);
  while (::fcntl(fd, F_SETLKW, &lock) != 0) {
    if (errno != EINTR) fail_to_join("Locking", path);
  }
}

void give_byte(int fd, off_t byte) {
  struct flock lock = byte_lock(F_UNLCK, byte);
  ::fcntl(fd, F_SETLK, &lock);
}

// The file at `path` with the door held: one that is still in its place.
int open_at_the_door(const std::string& path) {
  while (true) {
    Descriptor file(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
    if (file.get() < 0) fail_to_join("Opening", path);
    take_byte(file.get(), 0, path);
    struct stat here {};
    struct stat named {};
    if (::fstat(file.get(), &here) == 0 && ::stat(path.c_str(), &named) == 0 &&
        here.st_ino == named.st_ino && here.st_dev == named.st_dev) {
      return file.take();
    }
    // The last one left between our open and our lock.
  }
}

void initialise(MachineHeader& header, const MachineShape& shape) {
  std::random_device random;
  const auto word = [&random] { return (std::uint64_t{random()} << 32) | random(); };
  header.layout_bytes = sizeof(MachineHeader);
  header.id = {word(), word() & ~std::uint64_t{0xff00'0000'0000'0000}};  // last byte: the device
  header.devices = shape.devices;
  header.capacity_units = shape.memory_bytes / kUnitBytes;
  header.range_units = header.capacity_units * kRangePerCapacity;
  pthread_mutexattr_t attributes;
  pthread_mutexattr_init(&attributes);
  pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
  pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
  pthread_mutex_init(&header.mutex, &attributes);
  pthread_mutexattr_destroy(&attributes);
  header.magic.store(kMachineMagic, std::memory_order_release);
}

}  // namespace

bool Machine::process_lives(std::uint32_t slot) const {
  // One's own locks are never in one's own way.
  if (!path_.empty() && slot == ticket_.slot) return true;
  struct flock lock = byte_lock(F_WRLCK, 1 + static_cast<off_t>(slot));
  return ::fcntl(fd_, F_GETLK, &lock) == 0 && lock.l_type != F_UNLCK;
}

std::unique_ptr<Machine> Machine::join(const std::string& path, const MachineShape& shape,
                                       std::int64_t client_pid) {
  std::unique_ptr<Machine> machine(new Machine);
  machine->fd_ = open_at_the_door(path);
  const int fd = machine->fd_;
  machine->ticket_.slot = kMaxProcesses;  // none yet

  bool inhabited = false;
  for (std::uint32_t slot = 0; slot < kMaxProcesses && !inhabited; ++slot) {
    inhabited = machine->process_lives(slot);
  }
  machine->path_ = path;
  if (!inhabited) {
    // New, or left behind by processes that were all killed at once: start from nothing.
    const std::uint64_t range = shape.memory_bytes * kRangePerCapacity;
    if (::ftruncate(fd, 0) != 0 ||
        ::ftruncate(fd, static_cast<off_t>(table_bytes() + shape.devices * range)) != 0) {
      fail_to_join("Making", path);
    }
  }
  machine->map_tables();
  MachineHeader& header = *machine->header_;
  if (!inhabited) initialise(header, shape);
  if (header.magic.load(std::memory_order_acquire) != kMachineMagic ||
      header.layout_bytes != sizeof(MachineHeader)) {
    throw Error(ErrorCode::kDeviceError,
                "The simulated machine " + path + " was made by another version of this library.",
                "End the processes that use it, or name another with LIMBO_SIM_MACHINE.");
  }
  {
    const MachineLock lock(*machine);
    machine->drop_dead();
    std::uint32_t slot = 0;
    while (slot < kMaxProcesses && header.processes[slot].alive != 0) ++slot;
    if (slot == kMaxProcesses) {
      throw Error(ErrorCode::kDeviceError, "The simulated machine " + path + " is used by " +
                                               std::to_string(kMaxProcesses) +
                                               " processes already, and takes no more.");
    }
    take_byte(fd, 1 + static_cast<off_t>(slot), path);
    ProcessRow& row = header.processes[slot];
    ++row.generation;
    row.pid = client_pid;
    row.alive = 1;
    machine->ticket_ = {slot, row.generation};
  }
  give_byte(fd, 0);
  return machine;
}

void Machine::leave() {
  take_byte(fd_, 0, path_);
  bool others = false;
  {
    const MachineLock lock(*this);
    drop_process(ticket_.slot);
    drop_dead();
    for (const ProcessRow& row : header_->processes) others = others || row.alive != 0;
  }
  if (!others) ::unlink(path_.c_str());
  give_byte(fd_, 1 + static_cast<off_t>(ticket_.slot));
  give_byte(fd_, 0);
}

}  // namespace limbo::sim
