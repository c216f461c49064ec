// The state of the model: everything that the next step depends on, as plain bytes.
//
// One producer (process 0) and up to three consumers (processes 1 to 3; consumer c is the one of
// lease c), each with a few threads. A thread works off a script (scenario.h), one operation after
// the other; an operation is a row of segments, each one call of the functions that the product
// runs. A thread within a segment is described by what its accesses have returned so far (`log`):
// to go on, the segment is run anew from its start, answered from the log, up to its next access.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "ipc/protocol/note.h"

namespace limbo::model {

constexpr std::uint8_t bit(std::uint32_t index) {
  return static_cast<std::uint8_t>(1U << index);
}

inline constexpr std::uint32_t kExports = 3;
inline constexpr std::uint32_t kLeases = 3;
inline constexpr std::uint32_t kGroups = 2;
inline constexpr std::uint32_t kSlotsPerGroup = 2;
inline constexpr std::uint32_t kSlots = kGroups * kSlotsPerGroup;
inline constexpr std::uint32_t kPieces = 2;
inline constexpr std::uint32_t kBlocks = 2;
inline constexpr std::uint32_t kMessages = 4;
inline constexpr std::uint32_t kTimelines = 4;
inline constexpr std::uint32_t kThreads = 8;
inline constexpr std::uint32_t kStreams = 4;
inline constexpr std::uint32_t kNoIndex = 255;

// ---- shared words: small values of the same coding as the product's --------------------------

using Word = std::uint8_t;
inline constexpr Word kNowhere = 255;  // reads as 0, is never written: what a scenario leaves out

inline constexpr Word kLockWord = 0;
inline constexpr Word kUnpinsPending = 1;
inline constexpr Word kLeaseList = 2;  // a bit for each lease
inline constexpr Word kFirstPiece = 3;
inline constexpr Word kFirstExport = kFirstPiece + kPieces;
inline constexpr Word kFirstLease = kFirstExport + 2 * kExports;
inline constexpr Word kLeaseWords = 2 + 2 * kGroups + kSlots + kPieces;
inline constexpr Word kFirstTimeline = kFirstLease + kLeases * kLeaseWords;
inline constexpr Word kFirstData = kFirstTimeline + kTimelines;  // what is in the blocks
inline constexpr Word kFirstEnd = kFirstData + kBlocks;          // where timelines have ended
inline constexpr Word kNamesLock = kFirstEnd + kTimelines;       // of the folder of names
inline constexpr Word kName = kNamesLock + 1;                    // the one link that matters
inline constexpr Word kFirstNewLink = kName + 1;                 // a link each, on its way there
inline constexpr Word kWords = kFirstNewLink + kLeases + 1;

// Values of the words that the model codes more simply than ipc/layout.h.
inline constexpr std::uint32_t kPieceWanted = 1;
inline constexpr std::uint32_t kMarkOpening = 1;
inline constexpr std::uint32_t kMarkMapped = 2;

constexpr Word word_at(std::uint32_t first, std::uint32_t index) {
  return static_cast<Word>(first + index);
}
constexpr Word piece_word(std::uint32_t piece) {
  return word_at(kFirstPiece, piece);
}
constexpr Word export_word(std::uint32_t index) {
  return word_at(kFirstExport, 2 * index);
}
constexpr Word export_field(std::uint32_t index) {
  return word_at(kFirstExport, 2 * index + 1);
}
constexpr Word lease_word(std::uint32_t lease, std::uint32_t index) {
  return word_at(kFirstLease, lease * kLeaseWords + index);
}
constexpr Word claim_word(std::uint32_t lease, std::uint32_t slot) {
  return lease_word(lease, 2 + 2 * kGroups + slot);
}
constexpr Word mark_word(std::uint32_t lease, std::uint32_t piece) {
  return lease_word(lease, 2 + 2 * kGroups + kSlots + piece);
}
constexpr Word timeline_word(std::uint32_t timeline) {
  return word_at(kFirstTimeline, timeline);
}
constexpr Word end_word(std::uint32_t timeline) {
  return word_at(kFirstEnd, timeline);
}
constexpr Word data_word(std::uint32_t block) {
  return word_at(kFirstData, block);
}
constexpr Word new_link_word(std::uint32_t process) {
  return word_at(kFirstNewLink, process);
}
// What the lock and the links say; 0: nothing.
constexpr std::uint32_t name_of_process(std::uint32_t process) {
  return process + 1;
}

// ---- threads -------------------------------------------------------------------------------

// A store or addition that was made and has not landed.
struct Pending {
  std::uint32_t value;
  Word word;
  bool add;
  bool release;  // lands behind everything before it
  bool seq_cst;  // a sequentially consistent load of this thread waits until it has landed
};

enum class Phase : std::uint8_t {
  kBegin,
  kLock,
  kInside,  // under the lock: what the operation is about
  kAbsorb,  // a pass
  kNote,
  kChoose,
  kClose,
  kUnlock,
  kUnpin,
  kUnpinned,
  kLookAgain,
  kAfter,
  kAfter2,
  kAfter3,
  kAfter4,
  kHold,  // of a receive: a hold on the mapping, the mapping, and the work on the block
  kMark,
  kOpen,
  kWork,
};

inline constexpr std::uint32_t kMaxLog = 56;
inline constexpr std::uint32_t kMaxPending = 12;
inline constexpr std::uint32_t kRegisters = 4;

enum class Life : std::uint8_t { kRuns, kFinished, kDead };

struct Thread {
  // What the segment keeps from one to the next.
  struct Head {
    std::uint8_t at;  // the operation in its script
    Phase phase;
    std::uint8_t row;                           // of a pass: the next lease to be noted
    std::uint8_t left;                          // of a pass: candidates to look at
    std::uint8_t batch;                         // exports to be closed, a bit each
    std::uint8_t over;                          // exports to be unpinned, a bit each
    std::uint8_t let_go;                        // blocks to be unpinned, a bit each
    std::uint8_t verdict;                       // of the last claim
    bool everything;                            // the pass looks at every group
    std::array<std::uint8_t, kRegisters> slot;  // claims of this thread (kNoIndex: none)
    std::uint8_t note[4];                       // what an operation remembers
  } head;
  Life life;
  std::uint8_t made;      // accesses of this segment
  std::uint8_t logged;    // those that returned something
  std::uint8_t buffered;  // pending stores
  std::array<std::uint32_t, kMaxLog> log;
  std::array<Pending, kMaxPending> pending;
};

// ---- streams: what a GPU has queued; it goes on after its process, until that is quiet ----------

struct Queued {
  enum class Kind : std::uint8_t { kNothing, kWrite, kRead, kWait };
  std::uint32_t value;
  Word word;
  Kind kind;
  std::uint16_t about;
};
struct Stream {
  std::array<Queued, 9> queue;
  std::uint32_t size;
};

// ---- what processes keep privately -------------------------------------------------------------

enum class List : std::uint8_t { kNone, kCandidates, kIdle };

// The rules of ipc/ledger_exports.
struct Record {
  std::uint8_t generation;
  std::uint8_t held;
  std::uint8_t in_flight;
  std::uint8_t leases_seen;  // a bit each
  std::uint8_t block;
  List list;
  bool in_use;
  bool let_go;
  bool to_unpin;  // its pin has not been undone: the slot is not free
};

struct RowRecord {
  protocol::Seen lease;
  std::array<protocol::Seen, kGroups> groups;
  std::array<std::uint64_t, kSlots> mirrors;
};

struct Producer {
  std::array<RowRecord, kLeases> rows;
  std::array<Record, kExports> exports;
  std::array<std::uint8_t, kExports> queue;  // candidates, then idle ones, oldest first
  std::uint8_t queued;
  std::uint8_t over;          // a bit each
  std::uint8_t let_go_chain;  // blocks taken from the allocator by this holder
  bool let_go_again;
  std::array<std::uint8_t, 6> fill;
};

// What the allocator knows of a block; each change of it is one step.
struct Block {
  bool owned;
  bool listed;  // let go, and not yet absorbed by a pass
  std::uint8_t pins;
};

struct Piece {
  bool returned;
  bool refused;
};

// One mapping of a piece, as in ipc/import_cache.
struct Import {
  std::uint8_t holds;
  bool entered;  // in the table
  bool begun;    // it is marked, and opened or about to be
  bool open;
  std::uint8_t closing;   // taken out of the table, not yet closed
  std::uint8_t mappings;  // those that were begun and those that are being closed
};

struct Consumer {
  bool connected;
  std::uint8_t number;  // the last one that a dirty word was set to
  std::uint8_t jobs;    // slots with a release that was not struck off
  std::uint8_t free_size;
  std::uint8_t noted_size;
  std::array<std::uint8_t, kSlots> job_of;     // the message of a slot with a job
  std::array<std::uint8_t, kSlots + 2> free;   // first in, first out
  std::array<std::uint8_t, kSlots + 2> noted;  // RELEASED or FREE was read
  std::array<Import, kPieces> imports;
};

struct Message {
  bool sent;
  std::uint8_t export_index;
  std::uint8_t generation;
  std::uint8_t answered;                 // a bit for each consumer that has opened or declined it
  std::uint8_t declined;                 // a bit for each consumer whose decline is under way
  bool asked;                            // for a forward: the request is under way
  std::uint8_t asker;                    // its lease
  std::uint8_t asked_slot;               // and the claim that it holds
  std::uint8_t answer;                   // 0: none yet, 1: made, 2: refused
  bool given_up;                         // the answer did not come in time
  std::array<std::uint8_t, 2> timeline;  // to wait for
  std::array<std::uint8_t, 2> number;    // 0: nothing
  // What its owner says of those who sent it on before: the last number of each timeline, or that one
  // of them will not come.
  std::array<std::uint8_t, kTimelines> upstream;
  bool upstream_lost;
  std::uint8_t ended_early;  // withdrawn, or out of time: 1 under way, 2 done
};

struct Process {
  bool gone;
  bool quiet;
  bool swept;
  bool closed;  // its socket, though it lives: it ends
};

// What nobody in the protocol can see: it says whether a rule was broken.
struct Truth {
  // Message + 1 of the claim that stands in this slot, until its RELEASED has landed.
  std::array<std::array<std::uint8_t, kSlots>, kLeases> stands;
  std::array<std::array<bool, kSlots>, kLeases> maps;  // and has the mapping in hand
  std::array<bool, kBlocks> reused;
  std::array<std::uint8_t, kBlocks> settled;  // for the looks of the allocator, a bit each
  std::uint8_t named;                         // processes that have taken the name, a bit each
  std::uint8_t broken;                        // Rule, 0: none
  std::uint8_t about;
};

struct World {
  std::array<std::uint32_t, kWords> words;
  struct Private {
    Producer producer;
    std::array<Stream, kStreams> streams;
    std::array<Block, kBlocks> blocks;
    std::array<Piece, kPieces> pieces;
    std::array<Consumer, kLeases> consumers;
    std::array<Message, kMessages> messages;
    std::array<Process, kLeases + 1> processes;
    std::array<std::uint8_t, kTimelines> taken;  // the last number of each timeline
    Truth truth;
    std::uint8_t deaths_left;
    std::array<std::uint8_t, 7> fill;
  } own;
  std::array<Thread, kThreads> threads;  // last: those that a scenario does not have are not copied
};
static_assert(std::is_trivially_copyable_v<World>);

inline void copy_world(World& to, const World& from, std::size_t threads) noexcept {
  std::memcpy(static_cast<void*>(&to), &from, offsetof(World, threads) + threads * sizeof(Thread));
}

// States are told apart by their bytes, so there may be none that mean nothing.
static_assert(std::has_unique_object_representations_v<World::Private>);
static_assert(std::has_unique_object_representations_v<Thread::Head>);
static_assert(std::has_unique_object_representations_v<Pending>);

}  // namespace limbo::model
