// What `doctor` asks: what lending needs of this machine, each tried with what the product uses.
//
// None throws for what it finds: that is the answer. They leave nothing behind. Two of them fork a
// child, which makes system calls only and is killed.
#pragma once

#include <string>

#include "allocator/device/device.h"

namespace limbo {

struct Probe {
  bool works = false;
  std::string seen;    // what was seen, or why it does not work
  std::string advice;  // what to do about it; empty: nothing
};

// A socket is bound in this user's runtime directory and connected to.
[[nodiscard]] Probe probe_runtime_directory();
// A memfd, sealed as ledgers are: its maker writes, others read, and nobody maps it writable, changes
// its size or adds a seal.
[[nodiscard]] Probe probe_memfd_seals();
// The end of a process that has connected is seen at once, by a descriptor.
[[nodiscard]] Probe probe_pidfd();
// A descriptor that a process holds reads end-of-file when it ends; and how far this process's own
// life line can be believed.
[[nodiscard]] Probe probe_life_line();
// A stream of `index` writes a word of sealed memory, waits for it, and writes another. Starts the
// device, and waits for that stream.
[[nodiscard]] Probe probe_stream_memory_operations(Device& device, int index);

}  // namespace limbo
