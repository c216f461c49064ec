// Which of a process's open files belong to the GPU driver. As long as any process holds one of
// them, GPU work that was started through it can go on (see life_line.h).
//
// These functions use system calls only (no memory is allocated, no lock taken), so that they may
// be called in a fork child.
#pragma once

namespace limbo {

struct DriverFiles {
  bool readable = true;  // false: the list of files could not be read; counts as open
  int lowest = -1;       // the lowest descriptor that is a driver's file; -1: none

  [[nodiscard]] bool any() const noexcept { return !readable || lowest >= 0; }
};

// The files of this process.
[[nodiscard]] DriverFiles own_driver_files() noexcept;

// Whether one of them has a lower number than this. What cannot be read counts as yes. Looks at those
// numbers alone.
[[nodiscard]] bool own_driver_file_below(int number) noexcept;

// Whether a living descendant of this process has a driver's file open. What cannot be read counts
// as yes. Children whose parent has ended are nobody's descendants any more and are not seen.
[[nodiscard]] bool descendant_has_driver_files() noexcept;

}  // namespace limbo
