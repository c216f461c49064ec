// What a process that lends does at its end. At a normal exit it is done by itself (process.cpp).
#pragma once

namespace limbo {

// Sharing::drain for at most what the option exit_drain_ms says; the option becomes what is left of
// it. For the end of a process that may not run `atexit`, and may: both together wait no longer.
void drain_before_exit();

}  // namespace limbo
