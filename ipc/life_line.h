// The life line: how other processes know that none of this process's GPU work runs any more.
//
// Closing a process's last descriptor of the driver ends its GPU work, and fork children inherit
// those descriptors. So the life line is a descriptor that is inherited and closed together with
// them: the end of a pipe that is written to, made when the library is loaded, before CUDA starts,
// under the lowest number to be had (a dying process closes from the highest number down, so it
// closes after the driver's), close-on-exec as the driver's are. The far end, which is read, goes to
// whoever has to know; it hangs up when this process and its fork children have closed theirs.
//
// All who get the far end get one open file, and some of them pass it on. So it has to be one by
// which nobody can end the line for the others: a pipe hangs up for its readers when nobody holds its
// other end any more, and for no other reason. Whoever opens that end anew, through /proc, keeps the
// line open for as long; what is written into it is never read.
//
// A number below it may become free later, and the driver's with what it opens then: so what is said
// of the line in hello is looked at again when the device has been started, and whenever a piece has
// been opened, and the producers are told when it proves less.
//
// After a fork: a child forked after the first use keeps the inherited line for as long as it
// lives, as it keeps the driver's files. A child forked before is a process of its own: it closes
// the inherited line (told by inode, not by number) where it has no file of the driver open, and
// makes its own.
#pragma once

#include <cstdint>

namespace limbo::life_line {

// What a producer has to know about how far this life line can be believed. Sent in hello.
inline constexpr std::uint32_t kLate =
    1;  // made after the driver's files were opened, or closed since
// A descendant held the driver's files when the line was made late: it does not hold the line. Or it
// does now, and the line was closed.
inline constexpr std::uint32_t kLateWithChildren = 2;
// GPU work may belong to an MPS server, which outlives this process: CUDA_MPS_PIPE_DIRECTORY is set,
// or a server listens in the default place, /tmp/nvidia-mps.
inline constexpr std::uint32_t kPerhapsMps = 4;
inline constexpr std::uint32_t kKnownFlags = kLate | kLateWithChildren | kPerhapsMps;

// A line. Both ends are close-on-exec, the held one under the lowest number to be had above the
// standard streams.
struct Ends {
  int held = -1;  // -1: there are none, and errno says why
  int far = -1;
};
// Async-signal-safe.
[[nodiscard]] Ends make_ends() noexcept;

// Makes the line; called at load. Never throws: what cannot be made is made at the next call of
// far_end.
void make() noexcept;

// In a fork child that is a process of its own: lets the inherited line go, makes a new one.
// Async-signal-safe.
void renew_in_child() noexcept;

// The end that others watch, for a duplicate; stays this module's. Where the program has closed it
// behind the library's back, it is opened anew; where the held end is closed, there is a new, late,
// line: ask for the flags afterwards. Throws kNoChannel when there can be none.
[[nodiscard]] int far_end();

// The end that is held, for Device::hold_while_work_runs; -1: there is none.
[[nodiscard]] int near_end() noexcept;

// kLate and so on, as things stand now.
[[nodiscard]] std::uint32_t flags();

}  // namespace limbo::life_line
