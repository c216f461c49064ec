// Who wants to come before the driver at the end of the process.
//
// Handlers of `atexit` run in the opposite order of their registration, and a driver registers its own
// when it starts, or when it starts a GPU. Who has to call the device at the process's end registers
// behind it, each time.
#pragma once

namespace limbo {

// Called when a driver may have registered handlers, by the thread that has started it; it calls no
// device. One for the process; null: nobody. Safe to call from any thread.
void set_driver_start_callback(void (*callback)()) noexcept;

// For devices: the driver has started, or has started a GPU.
void tell_driver_start();

}  // namespace limbo
