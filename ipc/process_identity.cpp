#include "ipc/process_identity.h"

#include <sys/stat.h>
#include <sys/vfs.h>

namespace limbo {
namespace {

constexpr auto kPidfdFileSystem = 0x5049'4446;  // PIDFS_MAGIC, since Linux 6.9

}  // namespace

// Before there was a file system of pidfds all of them had one inode.
ProcessIdentity identify_process(int pidfd, pid_t pid) noexcept {
  ProcessIdentity identity{.incarnation = {}, .pid = pid, .process = 0};
  struct statfs system {};
  struct stat facts {};
  if (::fstatfs(pidfd, &system) == 0 && system.f_type == kPidfdFileSystem &&
      ::fstat(pidfd, &facts) == 0) {
    identity.process = facts.st_ino;
  }
  return identity;
}

bool are_one_process(const ProcessIdentity& one, const ProcessIdentity& other) noexcept {
  if (one.process != 0 || other.process != 0) return one.process == other.process;
  if (one.pid != 0 || other.pid != 0) return one.pid == other.pid;
  return one.incarnation != Incarnation{} && one.incarnation == other.incarnation;
}

}  // namespace limbo
