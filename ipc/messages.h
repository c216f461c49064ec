// What travels over the channel: packets of a Unix socket (SEQPACKET), each one message.
//
// | bytes | field                                     |
// |-------|-------------------------------------------|
// | 2     | type                                      |
// | 2     | version                                   |
// | 4     | length of the whole message               |
// | ...   | the fields of its type, in fixed order    |
//
// All numbers are little endian. Descriptors travel beside the bytes; each type has its number of
// them. An unknown type or version is answered by an error that names both, and the connection goes
// on; so is a message of the wrong length or with the wrong descriptors. An error is never answered.
// Only what stands before the fields keeps its form in every version.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "allocator/error.h"
#include "ipc/layout.h"

namespace limbo {

inline constexpr std::uint16_t kMessageVersion = 4;
inline constexpr std::size_t kMaxMessageBytes = 4096;
inline constexpr std::size_t kMessageHeaderBytes = 8;

enum class MessageType : std::uint16_t {
  kHello = 1,         // consumer: who I am; its life line
  kWelcome = 2,       // producer: lease, capacities; ledger, timelines, row, its life line
  kRefused = 3,       // producer, instead of welcome: why
  kDecline = 4,       // consumer: I could not claim this one
  kRowHalfFull = 5,   // consumer: note my row
  kLostContext = 6,   // consumer: my GPU context is lost; what I held there is released
  kForward = 7,       // consumer: an export of what I hold, to send it on
  kMemory = 8,        // reserved: answered by "not available yet"
  kTimeline = 9,      // consumer: the timelines of the lease that a descriptor names
  kUnmapWanted = 10,  // reserved from here on
  kPublishList = 11,  // anyone: the four questions of questions.h
  kAcquire = 12,
  kReap = 13,
  kHolders = 14,
  kError = 15,        // either side, in answer to a message that it cannot take
  kBye = 16,          // consumer: nothing of my lease is left
  kForwarded = 17,    // producer, in answer to forward
  kTimelines = 18,    // producer, in answer to timeline
  kAskedInVain = 19,  // producer, in answer to forward or timeline: why not
  kTakeBack = 20,     // consumer: what was forwarded for me is not wanted any more
  kAnswer = 21,       // to one of the questions
  kHeard = 22,       // consumer, in answer to forwarded and to the answer to acquire: it is sent on
  kProvesLess = 23,  // consumer: my life line proves less than I have said in hello
};
inline constexpr MessageType kLastMessageType = MessageType::kProvesLess;

// "hello", "forward"; "unknown" for what is none.
[[nodiscard]] std::string_view message_name(std::uint16_t type) noexcept;

struct Hello {
  static constexpr std::size_t kDescriptors = 1;  // the life line's far end
  std::uint32_t ledger_version = kLedgerVersion;
  Incarnation incarnation;
  std::uint32_t life_line_flags = 0;
};

struct Welcome {
  // Ledger, the producer's timelines, row, life line, the consumer's own timelines.
  static constexpr std::size_t kDescriptors = 5;
  std::uint32_t lease_number = 0;
  Incarnation incarnation;
  std::uint32_t life_line_flags = 0;
  Capacities capacities;
};

// Also the body of kError.
struct Refused {
  static constexpr std::size_t kDescriptors = 0;
  ErrorCode code = ErrorCode::kNoChannel;
  std::string text;  // cut to what a message holds
};

struct Decline {
  static constexpr std::size_t kDescriptors = 0;
  std::uint32_t export_index = 0;
  std::uint64_t generation = 0;
};

// A request carries a number of its consumer's, and so does the answer: whoever asked may have given
// up meanwhile.
struct Forward {
  static constexpr std::size_t kDescriptors = 0;
  std::uint64_t request = 0;
  std::uint32_t slot = 0;  // the claim that the consumer keeps until the answer
  std::uint32_t export_index = 0;
  std::uint64_t generation = 0;
  std::uint64_t offset_bytes = 0;  // of the new range from the piece's base
  std::uint64_t size_bytes = 0;
  std::uint32_t consumers = 1;
  std::uint64_t time_limit_ms = 0;
  // Of the consumer's own timelines; number 0: none.
  std::uint32_t timeline[2] = {};
  std::uint64_t number[2] = {};
  // What the memory is behind beside that, by further messages: numbers of any lease's timelines (how
  // many, 16 bits; then each), at most protocol::kMostUpstream, and whether (16 bits, 0 or 1) anything
  // will never come.
  std::vector<TimelinePoint> also_behind{};
  bool also_lost = false;
};

struct Forwarded {
  static constexpr std::size_t kDescriptors = 0;
  std::uint64_t request = 0;
  std::uint32_t export_index = 0;
  std::uint64_t generation = 0;
};

struct AskTimelines {
  static constexpr std::size_t kDescriptors = 0;
  std::uint64_t request = 0;
  std::uint32_t lease_number = 0;
};

struct GivenTimelines {
  static constexpr std::size_t kDescriptors = 3;  // timelines, the lease's pidfd and life line
  std::uint64_t request = 0;
  std::uint32_t life_line_flags = 0;
};

struct AskedInVain {
  static constexpr std::size_t kDescriptors = 0;
  std::uint64_t request = 0;
  ErrorCode code = ErrorCode::kNoChannel;
  std::string text;
};

struct TakeBack {
  static constexpr std::size_t kDescriptors = 0;
  std::uint32_t export_index = 0;
  std::uint64_t generation = 0;
};

// What was made for the sender of this message has come to it, and will be named to others: until then
// its owner may take it back.
struct Heard {
  static constexpr std::size_t kDescriptors = 0;
  std::uint32_t export_index = 0;
  std::uint64_t generation = 0;
};

// A file of the driver was opened under a number lower than the life line's, for instance.
struct ProvesLess {
  static constexpr std::size_t kDescriptors = 0;
  std::uint32_t life_line_flags = 0;  // those of hello stand as well
};

using MessageBytes = std::vector<std::byte>;

[[nodiscard]] MessageBytes encode(const Hello& message);
[[nodiscard]] MessageBytes encode(const Welcome& message);
[[nodiscard]] MessageBytes encode(const Refused& message, MessageType type = MessageType::kRefused);
[[nodiscard]] MessageBytes encode(const Decline& message);
[[nodiscard]] MessageBytes encode_row_half_full();
[[nodiscard]] MessageBytes encode_bye();
[[nodiscard]] MessageBytes encode_context_lost();
[[nodiscard]] MessageBytes encode(const Forward& message);
[[nodiscard]] MessageBytes encode(const Forwarded& message);
[[nodiscard]] MessageBytes encode(const AskTimelines& message);
[[nodiscard]] MessageBytes encode(const GivenTimelines& message);
[[nodiscard]] MessageBytes encode(const AskedInVain& message);
[[nodiscard]] MessageBytes encode(const TakeBack& message);
[[nodiscard]] MessageBytes encode(const Heard& message);
[[nodiscard]] MessageBytes encode(const ProvesLess& message);

struct MessageHeader {
  std::uint16_t type = 0;
  std::uint16_t version = 0;
  std::uint32_t length = 0;
};

// What is wrong with a packet of `descriptors` descriptors; empty when its type can be decoded.
// Fills `header` as far as the bytes go.
[[nodiscard]] std::string check_frame(std::span<const std::byte> bytes, std::size_t descriptors,
                                      MessageHeader& header);

// What is wrong with a packet that was cut.
inline constexpr std::string_view kCutMessage =
    "A message is longer, or has more descriptors, than any may have";

// The code of the error that answers what is wrong with a message.
[[nodiscard]] ErrorCode code_of_wrong(const MessageHeader& header) noexcept;

// The fields of a message that check_frame has passed. False: they are not what the type allows.
[[nodiscard]] bool decode(std::span<const std::byte> bytes, Hello& message);
[[nodiscard]] bool decode(std::span<const std::byte> bytes, Welcome& message);
[[nodiscard]] bool decode(std::span<const std::byte> bytes, Refused& message);
[[nodiscard]] bool decode(std::span<const std::byte> bytes, Decline& message);
[[nodiscard]] bool decode(std::span<const std::byte> bytes, Forward& message);
[[nodiscard]] bool decode(std::span<const std::byte> bytes, Forwarded& message);
[[nodiscard]] bool decode(std::span<const std::byte> bytes, AskTimelines& message);
[[nodiscard]] bool decode(std::span<const std::byte> bytes, GivenTimelines& message);
[[nodiscard]] bool decode(std::span<const std::byte> bytes, AskedInVain& message);
[[nodiscard]] bool decode(std::span<const std::byte> bytes, TakeBack& message);
[[nodiscard]] bool decode(std::span<const std::byte> bytes, Heard& message);
[[nodiscard]] bool decode(std::span<const std::byte> bytes, ProvesLess& message);

}  // namespace limbo
