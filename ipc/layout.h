// The shared tables as they lie in memory. Three memfds:
//
// | memfd     | made by  | written by                        | holds                            |
// |-----------|----------|-----------------------------------|----------------------------------|
// | ledger    | producer | producer (sealed: nobody else)    | LedgerHeader, PieceRow, ExportRow|
// |           |          |                                   | UpstreamRow                      |
// | timelines | producer | its GPU; who waits, when it ends  | Timeline                         |
// | row       | producer | one consumer, its GPU; producer   | RowHeader, dirty words, claims,  |
// |           |          | (only claims -> FREE)             | mapped words                     |
//
// Everything is little endian and 64-bit. Consumers believe capacities from the welcome message
// only after checking them against the sealed sizes; producers bounds-check every index read from a
// row.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "ipc/protocol/words.h"

namespace limbo {

using SharedWord = std::atomic<std::uint64_t>;
static_assert(SharedWord::is_always_lock_free && sizeof(SharedWord) == 8);

inline constexpr std::uint64_t kLedgerMagic = 0x3147'4445'4c42'4d4cULL;  // "LMBLEDG1"
inline constexpr std::uint32_t kLedgerVersion = 2;

struct Capacities {
  std::uint32_t exports = 1U << 20;
  std::uint32_t pieces = 1U << 16;
  std::uint32_t claims = 1U << 16;  // per lease; a multiple of protocol::kGroupClaims
  std::uint32_t timelines = 4096;

  friend bool operator==(const Capacities&, const Capacities&) = default;
};

struct Incarnation {
  std::uint64_t high = 0;
  std::uint64_t low = 0;

  friend bool operator==(const Incarnation&, const Incarnation&) = default;
};

struct alignas(64) LedgerHeader {
  SharedWord magic;
  SharedWord version;
  SharedWord incarnation_high;
  SharedWord incarnation_low;
  SharedWord capacity_exports;
  SharedWord capacity_pieces;
  SharedWord context_lost;  // 1: the producer's GPU context is lost (Producer::mark_context_lost)
};

// A lent piece. Written before an export that names it is OPEN, by the producer only.
struct alignas(64) PieceRow {
  SharedWord word;  // generation << 2 | unmap wanted (2) | in use (1)
  SharedWord size_bytes;
  SharedWord uuid[2];      // of the device, bytes in order
  SharedWord handle_kind;  // HandleKind
  SharedWord handle[8];    // 64 bytes
  SharedWord reserved[3];
};
static_assert(sizeof(PieceRow) == 128);
inline constexpr std::uint64_t kPieceInUse = 1;
inline constexpr std::uint64_t kPieceUnmapWanted = 2;
constexpr std::uint64_t piece_generation(std::uint64_t word) noexcept {
  return word >> 2;
}

// A mark in a row: generation << 2 | flags. The mark comes before the open, so it alone does not
// tell that the mapping is there.
inline constexpr std::uint64_t kMarkMapped = 1;  // the piece must not go back to the driver
inline constexpr std::uint64_t kMarkOpen = 2;    // it has been opened
constexpr std::uint64_t mark_word(std::uint64_t generation, std::uint64_t flags) noexcept {
  return generation << 2 | flags;
}

// Which timeline, and the number to wait for. `owner` 0: the producer's; else lease number + 1
// (forwarded descriptors). `number` 0: nothing to wait for.
struct TimelinePoint {
  std::uint32_t owner = 0;
  std::uint32_t index = 0;
  std::uint64_t number = 0;

  friend bool operator==(const TimelinePoint&, const TimelinePoint&) = default;
};
// As it stands in the ledger.
constexpr std::uint64_t where_of(const TimelinePoint& point) noexcept {
  return (std::uint64_t{point.owner} << 32) | point.index;
}
constexpr TimelinePoint point_of(std::uint64_t where, std::uint64_t number) noexcept {
  return {static_cast<std::uint32_t>(where >> 32), static_cast<std::uint32_t>(where & 0xffff'ffffU),
          number};
}

struct alignas(64) ExportRow {
  SharedWord word;         // protocol::ExportWord
  SharedWord first_piece;  // index in the pieces table
  SharedWord piece_generation;
  SharedWord piece_count;   // 1
  SharedWord offset_bytes;  // from the first piece's base
  SharedWord size_bytes;
  SharedWord point_where[2];  // owner << 32 | index
  SharedWord point_number[2];
  SharedWord upstream;  // protocol::UpstreamWord
  SharedWord reserved[5];
};
static_assert(sizeof(ExportRow) == 128);

// A number that a message is made of, of a consumer that sent it on before its sender
// (protocol/upstream.h).
struct UpstreamRow {
  SharedWord where;  // owner << 32 | index
  SharedWord number;
  SharedWord next;  // index + 1; 0: the last
  SharedWord reserved;
};
static_assert(sizeof(UpstreamRow) == 32);

struct alignas(64) Timeline {
  SharedWord value;
  SharedWord ended_at;  // protocol/timeline.h
  SharedWord reserved[6];
};
static_assert(sizeof(Timeline) == 64);

// The head of a consumer's row. Dirty words: the host's is added to, the GPU's is set to numbers
// never used before; each on a cache line of its own.
struct alignas(64) RowHeader {
  SharedWord lease_dirty_host;
  SharedWord pad0[7];
  SharedWord lease_dirty_gpu;
  SharedWord pad1[7];
};

// Byte offsets of the parts of a memfd. Parts start on pages, so that the part that a GPU writes
// can be registered alone.
struct LedgerLayout {
  std::size_t header = 0, pieces = 0, exports = 0;
  std::size_t upstream = 0;  // as many rows as there are exports
  std::size_t total = 0;
};
struct RowLayout {
  std::size_t header = 0;
  std::size_t group_dirty_host = 0, group_dirty_gpu = 0;  // one SharedWord per group
  std::size_t claims = 0;                                 // SharedWord each
  std::size_t gpu_end = 0;                                // [0, gpu_end) is what a GPU writes
  std::size_t mapped = 0;                                 // one SharedWord per piece: mark_word
  std::size_t total = 0;
};

inline constexpr std::size_t kPageBytes = 4096;
constexpr std::size_t page_rounded(std::size_t bytes) noexcept {
  return (bytes + kPageBytes - 1) / kPageBytes * kPageBytes;
}

constexpr LedgerLayout ledger_layout(const Capacities& capacities) noexcept {
  LedgerLayout layout;
  layout.pieces = page_rounded(sizeof(LedgerHeader));
  layout.exports = page_rounded(layout.pieces + capacities.pieces * sizeof(PieceRow));
  layout.upstream = page_rounded(layout.exports + capacities.exports * sizeof(ExportRow));
  layout.total = page_rounded(layout.upstream + capacities.exports * sizeof(UpstreamRow));
  return layout;
}

constexpr RowLayout row_layout(const Capacities& capacities) noexcept {
  RowLayout layout;
  const std::size_t groups = capacities.claims / protocol::kGroupClaims;
  layout.group_dirty_host = page_rounded(sizeof(RowHeader));
  layout.group_dirty_gpu = page_rounded(layout.group_dirty_host + groups * sizeof(SharedWord));
  layout.claims = page_rounded(layout.group_dirty_gpu + groups * sizeof(SharedWord));
  layout.gpu_end = page_rounded(layout.claims + capacities.claims * sizeof(SharedWord));
  layout.mapped = layout.gpu_end;
  layout.total = page_rounded(layout.mapped + capacities.pieces * sizeof(SharedWord));
  return layout;
}

constexpr std::size_t timelines_bytes(const Capacities& capacities) noexcept {
  return page_rounded(capacities.timelines * sizeof(Timeline));
}

}  // namespace limbo
