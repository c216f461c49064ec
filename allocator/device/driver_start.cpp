#include "allocator/device/driver_start.h"

#include <atomic>

namespace limbo {
namespace {

std::atomic<void (*)()> start_callback{nullptr};

}  // namespace

void set_driver_start_callback(void (*callback)()) noexcept {
  start_callback.store(callback);
}

void tell_driver_start() {
  if (void (*const callback)() = start_callback.load()) callback();
}

}  // namespace limbo
