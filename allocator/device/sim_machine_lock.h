// The machine's mutex. Guards every field of MachineHeader but the immutable ones (magic, shape,
// id). Held for table work and for punching holes; nothing else is taken or called under it.
#pragma once

#include <pthread.h>

#include <cerrno>
#include <cstddef>

#include "allocator/device/sim_machine.h"

namespace limbo::sim {

// The part of the file before the devices' memory.
[[nodiscard]] std::size_t table_bytes() noexcept;

class MachineLock {
 public:
  explicit MachineLock(Machine& machine) : mutex_(&machine.header_->mutex) {
    if (pthread_mutex_lock(mutex_) == EOWNERDEAD) {
      machine.repair();
      pthread_mutex_consistent(mutex_);
    }
  }
  ~MachineLock() { pthread_mutex_unlock(mutex_); }
  MachineLock(const MachineLock&) = delete;
  MachineLock& operator=(const MachineLock&) = delete;

 private:
  pthread_mutex_t* mutex_;
};

}  // namespace limbo::sim
