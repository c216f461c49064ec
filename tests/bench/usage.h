// What a process uses at one moment, for seeing whether it grows.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

namespace limbo::bench {

// A number of a process, and by how much it may have grown between two moments and count as flat.
struct UseKind {
  const char* name;
  std::int64_t tolerance;
};

// Tolerances are what a process that does the same all the time may differ by: a page of an allocator
// here or there, a pool that has met a higher peak, something that a driver opens late. What is leaked once in a thousand messages shows
// in a million. Events are pooled; at most 256 of ours are unlanded on a stream. What is reserved may
// follow a higher peak too: that every block has come back is checked exactly, before looking.
inline constexpr std::array<UseKind, 6> kUses{{
    {"host KiB", 4'096},  // anonymous and shared memory that is resident
    {"descriptors", 2},   // but for those of the driver's device files
    {"mappings", 32},
    {"events", 512},           // of the device, made and not destroyed
    {"reserved KiB", 32'768},  // taken from the driver by the allocator
    {"GPU KiB", 65'536},       // in use on the whole GPU
}};

using Usage = std::array<std::int64_t, kUses.size()>;

// This process's, on bench::device().
[[nodiscard]] Usage usage_now();

// What has grown by more than its tolerance, in words; empty if nothing has.
[[nodiscard]] std::string grown(const Usage& before, const Usage& after);

}  // namespace limbo::bench
