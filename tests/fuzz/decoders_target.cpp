// Every decoder of ipc/ that reads bytes from a stranger: descriptors and messages.
//
// Byte 0 says which, and whether the frame around the fields is made right first, so that what
// stands behind checksum, length and version is reached. What is accepted must be exactly what the
// encoder makes of the decoded fields.
#include <algorithm>

#include "allocator/error.h"
#include "ipc/checksum.h"
#include "ipc/descriptor.h"
#include "ipc/messages.h"
#include "ipc/questions.h"
#include "tests/fuzz/target.h"

namespace limbo::fuzz::decoders {
namespace {

void descriptor(ByteSpan bytes) {
  Descriptor decoded;
  try {
    decoded = decode_descriptor(bytes);
  } catch (const Error& refused) {
    require(refused.code() == ErrorCode::kBadDescriptor, "a bad descriptor is bad_descriptor");
    return;
  }
  require(std::ranges::equal(encode_descriptor(decoded), bytes),
          "an accepted descriptor is what its fields encode to");
}

Bytes framed_descriptor(ByteSpan fields) {
  FieldWriter out;
  out.number(std::uint32_t{0x4442'4d4c});
  out.number(kDescriptorVersion);
  out.number(static_cast<std::uint32_t>(fields.size() + 16));
  out.raw(fields);
  out.number(crc32c(out.view()));
  return out.take();
}

template <typename Message, typename... More>
void decode_as(ByteSpan bytes, More... more) {
  Message message;
  if (!decode(bytes, message)) return;
  require(std::ranges::equal(encode(message, more...), bytes),
          "an accepted message is what its fields encode to");
}

// The end of a list is the asked one's to say, and so is not encoded again.
void answer(ByteSpan bytes) {
  Answer decoded;
  if (!decode(bytes, decoded) || decoded.next != 0) return;
  const bool whole = std::ranges::all_of(
      decoded.holders, [](const Holder& holder) { return holder.why.size() <= 512; });
  require(!whole || std::ranges::equal(encode(decoded), bytes),
          "an accepted answer is what its fields encode to");
}

void message(ByteSpan bytes, std::size_t descriptors) {
  MessageHeader header;
  if (!check_frame(bytes, descriptors, header).empty()) return;
  require(header.length == bytes.size(), "a message that passes has its length");
  const auto type = static_cast<MessageType>(header.type);
  switch (type) {
    case MessageType::kHello:
      return decode_as<Hello>(bytes);
    case MessageType::kWelcome:
      return decode_as<Welcome>(bytes);
    case MessageType::kRefused:
    case MessageType::kError:
      return decode_as<Refused>(bytes, type);
    case MessageType::kDecline:
      return decode_as<Decline>(bytes);
    case MessageType::kForward:
      return decode_as<Forward>(bytes);
    case MessageType::kForwarded:
      return decode_as<Forwarded>(bytes);
    case MessageType::kTimeline:
      return decode_as<AskTimelines>(bytes);
    case MessageType::kTimelines:
      return decode_as<GivenTimelines>(bytes);
    case MessageType::kAskedInVain:
      return decode_as<AskedInVain>(bytes);
    case MessageType::kTakeBack:
      return decode_as<TakeBack>(bytes);
    case MessageType::kHeard:
      return decode_as<Heard>(bytes);
    case MessageType::kProvesLess:
      return decode_as<ProvesLess>(bytes);
    case MessageType::kPublishList:
    case MessageType::kAcquire:
    case MessageType::kReap:
    case MessageType::kHolders:
      return decode_as<Question>(bytes);
    case MessageType::kAnswer:
      return answer(bytes);
    default:
      return;
  }
}

Bytes framed_message(Input& input) {
  FieldWriter out;
  out.number(static_cast<std::uint16_t>(input.number()));
  out.number(kMessageVersion);
  const ByteSpan fields = input.rest();
  out.number(static_cast<std::uint32_t>(fields.size() + kMessageHeaderBytes));
  out.raw(fields);
  return out.take();
}

LIMBO_FUZZ_TARGET(decoders) {
  Input input(bytes);
  switch (input.below(4)) {
    case 0:
      return descriptor(input.rest());
    case 1:
      return descriptor(framed_descriptor(input.rest()));
    case 2: {
      const std::size_t descriptors = input.below(6);
      return message(input.rest(), descriptors);
    }
    default: {
      const std::size_t descriptors = input.below(6);
      return message(framed_message(input), descriptors);
    }
  }
}

}  // namespace
}  // namespace limbo::fuzz::decoders
