// What is explored: small configurations, each of them exhaustively.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "ipc/protocol/mistakes.h"
#include "tests/model/world.h"

namespace limbo::model {

// ---- what must hold --------------------------------------------------------------------------
// Safety, in every state. (The rules are looked at where they can be broken: the functions that
// call break_rule.)
enum class Rule : std::uint8_t {
  kNone,
  kReusedWhileHeld,
  kCountBelowZero,
  kPromiseBroken,
  kClaimedAfterWithdrawal,
  kSlotTakenTwice,
  kReturnedWhileMapped,
  kClosedUnderUse,
  kOpenRefused,
  kReadTooEarly,
  kForwardedWhatIsFree,
  kFalseOutOfMemory,
  kNameLost,
  // Liveness, in every end. Scripts are finite and nothing goes round in circles, so every state
  // leads to an end; where every end is good, everything can end from every state.
  kStuck,
  kNeverFree,
  kNameOfTheDead,
  kEndless,
};

constexpr std::string_view text_of(Rule rule) {
  switch (rule) {
    case Rule::kNone:
      return "nothing is broken";
    case Rule::kReusedWhileHeld:
      return "a block was reused while a claim on it stands, or its release has not landed";
    case Rule::kCountBelowZero:
      return "a count went below zero";
    case Rule::kPromiseBroken:
      return "a process that was promised the block met gone or CLOSING";
    case Rule::kClaimedAfterWithdrawal:
      return "a message that had been withdrawn, or was out of time, could still be opened";
    case Rule::kSlotTakenTwice:
      return "a claim slot was taken while another claim stood in it";
    case Rule::kReturnedWhileMapped:
      return "a piece went back to the driver while a consumer had it mapped";
    case Rule::kClosedUnderUse:
      return "a mapping was closed while a stream still used it";
    case Rule::kOpenRefused:
      return "a claim stood, and its piece could not be opened";
    case Rule::kReadTooEarly:
      return "a stream read before the data was written, and its reader is not told";
    case Rule::kForwardedWhatIsFree:
      return "a claim that was no longer noted was sent on";
    case Rule::kFalseOutOfMemory:
      return "a last look before out-of-memory missed a block that nobody held any more";
    case Rule::kNameLost:
      return "a name does not lead to the living process that has taken it";
    case Rule::kStuck:
      return "a thread waits for what cannot come";
    case Rule::kNeverFree:
      return "everybody is done, and something has not ended";
    case Rule::kNameOfTheDead:
      return "whoever came last could not have the name, or something of the dead stayed behind";
    case Rule::kEndless:
      return "an operation does not come to an end";
  }
  return "?";
}

// ---- what threads do -----------------------------------------------------------------------

enum class Op : std::uint8_t {
  // the producer
  kShare,           // message
  kFree,            // block: its owner lets go
  kCollect,         // as on a miss of the allocator
  kLookThoroughly,  // as before out-of-memory
  kWithdraw,        // message
  kExpire,          // message: its time may be over
  kAddLease,        // lease
  kSweep,           // lease, once its consumer is quiet
  kTakeDecline,     // a decline that has come
  kTakeForward,     // a request to forward that has come
  kTakeBack,        // a forward that its asker gave up, or died without having heard of
  kReturnPiece,     // piece: asked of the consumers, and returned if none maps it
  kExit,            // waits until what was sent is mapped, and ends
  kAwaitReaders,    // until nobody holds anything
  // either
  kWrite,  // block, value (0: 1), stream that writes it (kNoIndex: one of the first two)
  // a consumer
  kReceive,      // message, register
  kReleaseHost,  // message, register
  kReleaseGpu,   // message, register, stream
  kReleaseBoth,  // message and the next one, register and the next one, stream: one batch
  kPoll,         // strikes off what has landed
  kDecline,      // message
  kForward,      // the new message, register of the old one's claim
  kLoseContext,  // of its GPU: what has not landed is released by the host
  kUnmap,        // piece: closes what its owner wants back; slot 1: what is idle; 2: of the dead
  // whoever waits
  kEnd,  // timeline, slot: its process, which is gone; stream 1: and quiet
  // whoever publishes
  kTakeName,
  kGiveUpName,
  kCloseSocket,  // its process ends: from now on it is taken for dead
};

constexpr bool is_of_names(Op op) {
  return op == Op::kTakeName || op == Op::kGiveUpName || op == Op::kCloseSocket;
}

struct Step {
  Op op;
  std::uint8_t what = 0;
  std::uint8_t slot = 0;
  std::uint8_t stream = kNoIndex;

  friend bool operator==(const Step&, const Step&) = default;
};

struct Script {
  std::string_view name;
  std::uint8_t process = 0;
  std::vector<Step> steps;
  bool waits = false;  // an end may find it waiting: what it waits for need not come
};

struct MessageSpec {
  std::uint8_t block = 0;
  std::uint8_t consumers = 1;
  std::uint8_t promised = 0;  // a bit for each consumer that is one of them
  // The stream that the sender works on, and the block's own, if the send is to be ordered.
  std::uint8_t current_stream = kNoIndex;
  std::uint8_t home_stream = kNoIndex;
  std::uint8_t forwards = kNoIndex;  // the message that is sent on; the streams are its receiver's
  std::uint8_t data = 1;             // what its readers must find
};

struct Scenario {
  std::string_view name;
  std::string_view what;
  std::vector<Script> threads;
  std::vector<MessageSpec> messages;
  std::vector<std::uint8_t> streams = {};  // the process of each
  std::uint32_t groups = 1;
  std::uint32_t slots_per_group = 1;
  std::uint8_t blocks = 1;
  std::vector<std::uint8_t> pieces = {};  // the piece of each block, if mappings matter
  std::uint8_t table = 2 * kExports;  // how many exports it has: more than half full, idle ones go
  std::uint8_t connected = 1;         // leases at the beginning, a bit each
  std::uint8_t may_die = 0;           // processes, a bit each
  std::uint8_t deaths = 0;            // how many of them at most
  // What the end does before it looks whether all is over: collects, time limits.
  bool collects_at_end = true;
  bool expires_at_end = false;
  bool returns_at_end = false;  // all pieces
  bool in_short_run = true;
  bool reads_fields = false;  // what lies beside an export's word, behind a claim that stands
  // By what the scripts do (finished): words that nobody would look at are left out.
  bool awaits_unpins = false;
  bool lists_change = false;
  bool ends_timelines = false;
  bool takes_names = false;
  std::vector<bool> like_the_one_before = {};  // threads of one process with one script
  std::vector<protocol::Mistake> finds = {};
};

[[nodiscard]] Scenario finished(Scenario scenario);

// All of them.
const std::vector<Scenario>& scenarios();

}  // namespace limbo::model
