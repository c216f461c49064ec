// What a client and its companion share: one memfd with the queues of all streams of the process.
//
// | word                | written by | meaning                                                    |
// |---------------------|------------|------------------------------------------------------------|
// | StreamQueue::tail   | client     | entries enqueued since the slot's first use; never reset   |
// | ::completed         | companion  | entries done; entry `completed` is the one being worked on |
// | ::signal, ::waiters | companion, | how a client sleeps until `completed` or `holding` moves   |
// |                     | client     |                                                            |
// | ::holding           | companion  | 1 + position of the hold that the stream stands at         |
// | ::released          | client     | holds at positions under this are over                     |
// | Control::sleeping   | both       | 1: the companion wants a doorbell (eventfd) for new work   |
//
// A tail is stored before `sleeping` is read, and `sleeping` before the tails are read again, all
// sequentially consistent: no wake-up is lost. A client that dies between two of these stores has
// enqueued its entry or has not; the companion polls all tails whenever it is awake.
//
// Positions are 64-bit and never reused, so that "stream slot s has come past position p" names the
// end of some work for ever. That is all that an event is.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "allocator/device/sim_machine.h"

namespace limbo::sim {

inline constexpr std::uint32_t kMaxStreams = 512;  // live in one process; the first 8 are defaults
inline constexpr std::uint32_t kRingEntries = 1024;
// One being worked on, and as many behind it as were measured.
inline constexpr std::uint64_t kMaxOutstanding = 1022;
inline constexpr std::uint32_t kInlineWrites = 3;
inline constexpr std::uint32_t kMaxWrites = 255;

enum class OpKind : std::uint32_t {
  kNothing = 1,   // takes an entry: an event record
  kFill,          // file offset, value, count of 32-bit words
  kCopy,          // file offset to, from, bytes
  kWriteWords,    // `count` pairs (word, value); inline, or in the entry's overflow
  kWaitWord,      // word, at least
  kWaitPosition,  // stream slot, position
  kKernel,        // nanoseconds, file offset, count of 32-bit words, value
  kHold,          // until the client releases it, or has died
};

// A word of registered host memory: registration << kWordShift | byte offset.
using WordName = std::uint64_t;
inline constexpr unsigned kWordShift = 40;

struct Write {
  WordName word;
  std::uint64_t value;
};

struct Op {
  OpKind kind = OpKind::kNothing;
  std::uint32_t count = 0;
  union {
    std::uint64_t arguments[6] = {};
    Write writes[kInlineWrites];
  };
};
static_assert(sizeof(Op) == 56);

struct StreamQueue {
  alignas(64) std::atomic<std::uint64_t> tail;
  std::atomic<std::uint64_t> released;
  std::atomic<std::uint32_t> device;
  alignas(64) std::atomic<std::uint64_t> completed;
  std::atomic<std::uint64_t> holding;
  std::atomic<std::uint32_t> signal;
  std::atomic<std::uint32_t> waiters;
  alignas(64) Op ring[kRingEntries];
  // Written only by batches that do not fit inline: the pages of the others are never touched.
  alignas(4096) Write overflow[kRingEntries][kMaxWrites + 1];
};

struct Control {
  alignas(64) std::atomic<std::uint32_t> sleeping;
  alignas(64) std::atomic<std::uint32_t> streams_used;  // slots under this may have entries
  std::atomic<std::uint32_t> failed_devices;            // bit = index in the process
  alignas(4096) StreamQueue streams[kMaxStreams];
};

inline constexpr std::size_t kControlBytes = sizeof(Control);

}  // namespace limbo::sim
