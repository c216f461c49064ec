#include "ipc/messages.h"

#include <algorithm>
#include <optional>

#include "ipc/byte_fields.h"
#include "ipc/life_line.h"
#include "ipc/protocol/upstream.h"

namespace limbo {
namespace {

struct Shape {
  std::string_view name;
  std::optional<std::size_t> body_bytes;  // none: any
  std::size_t descriptors = 0;
  bool available = false;
};

constexpr std::size_t kHelloBytes = 4 + 16 + 4;
constexpr std::size_t kWelcomeBytes = 4 + 16 + 4 + 16;
constexpr std::size_t kDeclineBytes = 4 + 8;
constexpr std::size_t kForwardedBytes = 8 + 4 + 8;
constexpr std::size_t kAskTimelinesBytes = 8 + 4;
constexpr std::size_t kGivenTimelinesBytes = 8 + 4;
constexpr std::size_t kProvesLessBytes = 4;
constexpr std::size_t kMaxTextBytes = kMaxMessageBytes - kMessageHeaderBytes - 4;

bool can_be(std::uint32_t export_index, std::uint64_t generation) {
  return export_index <= protocol::kMaxExportIndex && generation <= protocol::kMaxGeneration;
}

Shape shape_of(std::uint16_t type) noexcept {
  switch (static_cast<MessageType>(type)) {
    case MessageType::kHello:
      return {"hello", kHelloBytes, Hello::kDescriptors, true};
    case MessageType::kWelcome:
      return {"welcome", kWelcomeBytes, Welcome::kDescriptors, true};
    case MessageType::kRefused:
      return {"refused", std::nullopt, Refused::kDescriptors, true};
    case MessageType::kDecline:
      return {"decline", kDeclineBytes, Decline::kDescriptors, true};
    case MessageType::kRowHalfFull:
      return {"row half full", 0, 0, true};
    case MessageType::kLostContext:
      return {"lost context", 0, 0, true};
    case MessageType::kForward:
      return {"forward", std::nullopt, Forward::kDescriptors, true};
    case MessageType::kMemory:
      return {"memory", {}, 0, false};
    case MessageType::kTimeline:
      return {"timeline", kAskTimelinesBytes, AskTimelines::kDescriptors, true};
    case MessageType::kUnmapWanted:
      return {"unmap wanted", {}, 0, false};
    case MessageType::kPublishList:
      return {"publish list", {}, 0, true};
    case MessageType::kAcquire:
      return {"acquire", {}, 0, true};
    case MessageType::kReap:
      return {"reap", {}, 0, true};
    case MessageType::kHolders:
      return {"holders", {}, 0, true};
    case MessageType::kError:
      return {"error", std::nullopt, 0, true};
    case MessageType::kBye:
      return {"bye", 0, 0, true};
    case MessageType::kForwarded:
      return {"forwarded", kForwardedBytes, Forwarded::kDescriptors, true};
    case MessageType::kTimelines:
      return {"timelines", kGivenTimelinesBytes, GivenTimelines::kDescriptors, true};
    case MessageType::kAskedInVain:
      return {"asked in vain", std::nullopt, AskedInVain::kDescriptors, true};
    case MessageType::kTakeBack:
      return {"take back", kDeclineBytes, TakeBack::kDescriptors, true};
    case MessageType::kAnswer:
      return {"answer", {}, 0, true};
    case MessageType::kHeard:
      return {"heard", kDeclineBytes, Heard::kDescriptors, true};
    case MessageType::kProvesLess:
      return {"proves less", kProvesLessBytes, ProvesLess::kDescriptors, true};
  }
  return {};
}

FieldWriter begin(MessageType type) {
  FieldWriter out;
  out.number(static_cast<std::uint16_t>(type));
  out.number(kMessageVersion);
  out.number(std::uint32_t{0});
  return out;
}

MessageBytes finish(FieldWriter&& out) {
  out.patch_u32(4, static_cast<std::uint32_t>(out.size()));
  return out.take();
}

void write_incarnation(FieldWriter& out, const Incarnation& incarnation) {
  out.number(incarnation.high);
  out.number(incarnation.low);
}

Incarnation read_incarnation(FieldReader& in) {
  const auto high = in.number<std::uint64_t>();
  return {high, in.number<std::uint64_t>()};
}

FieldReader body(std::span<const std::byte> bytes) {
  return FieldReader(bytes.subspan(kMessageHeaderBytes));
}

bool known_code(std::uint16_t code) {
  return code <= 0xff && error_code_name(static_cast<ErrorCode>(code)) != "unknown";
}

}  // namespace

std::string_view message_name(std::uint16_t type) noexcept {
  const Shape shape = shape_of(type);
  return shape.name.empty() ? "unknown" : shape.name;
}

MessageBytes encode(const Hello& message) {
  FieldWriter out = begin(MessageType::kHello);
  out.number(message.ledger_version);
  write_incarnation(out, message.incarnation);
  out.number(message.life_line_flags);
  return finish(std::move(out));
}

MessageBytes encode(const Welcome& message) {
  FieldWriter out = begin(MessageType::kWelcome);
  out.number(message.lease_number);
  write_incarnation(out, message.incarnation);
  out.number(message.life_line_flags);
  out.number(message.capacities.exports);
  out.number(message.capacities.pieces);
  out.number(message.capacities.claims);
  out.number(message.capacities.timelines);
  return finish(std::move(out));
}

MessageBytes encode(const Refused& message, MessageType type) {
  FieldWriter out = begin(type);
  out.number(static_cast<std::uint16_t>(message.code));
  out.text(std::string_view(message.text).substr(0, kMaxTextBytes));
  return finish(std::move(out));
}

MessageBytes encode(const Decline& message) {
  FieldWriter out = begin(MessageType::kDecline);
  out.number(message.export_index);
  out.number(message.generation);
  return finish(std::move(out));
}

MessageBytes encode_row_half_full() {
  return finish(begin(MessageType::kRowHalfFull));
}

MessageBytes encode_bye() {
  return finish(begin(MessageType::kBye));
}

MessageBytes encode_context_lost() {
  return finish(begin(MessageType::kLostContext));
}

MessageBytes encode(const Forward& message) {
  FieldWriter out = begin(MessageType::kForward);
  out.number(message.request);
  out.number(message.slot);
  out.number(message.export_index);
  out.number(message.generation);
  out.number(message.offset_bytes);
  out.number(message.size_bytes);
  out.number(message.consumers);
  out.number(message.time_limit_ms);
  for (std::size_t i = 0; i < 2; ++i) {
    out.number(message.timeline[i]);
    out.number(message.number[i]);
  }
  out.number(static_cast<std::uint16_t>(message.also_lost ? 1 : 0));
  out.number(static_cast<std::uint16_t>(message.also_behind.size()));
  for (const TimelinePoint& point : message.also_behind) {
    out.number(point.owner);
    out.number(point.index);
    out.number(point.number);
  }
  return finish(std::move(out));
}

MessageBytes encode(const Forwarded& message) {
  FieldWriter out = begin(MessageType::kForwarded);
  out.number(message.request);
  out.number(message.export_index);
  out.number(message.generation);
  return finish(std::move(out));
}

MessageBytes encode(const AskTimelines& message) {
  FieldWriter out = begin(MessageType::kTimeline);
  out.number(message.request);
  out.number(message.lease_number);
  return finish(std::move(out));
}

MessageBytes encode(const GivenTimelines& message) {
  FieldWriter out = begin(MessageType::kTimelines);
  out.number(message.request);
  out.number(message.life_line_flags);
  return finish(std::move(out));
}

MessageBytes encode(const AskedInVain& message) {
  FieldWriter out = begin(MessageType::kAskedInVain);
  out.number(message.request);
  out.number(static_cast<std::uint16_t>(message.code));
  out.text(std::string_view(message.text).substr(0, kMaxTextBytes - sizeof(message.request)));
  return finish(std::move(out));
}

MessageBytes encode(const TakeBack& message) {
  FieldWriter out = begin(MessageType::kTakeBack);
  out.number(message.export_index);
  out.number(message.generation);
  return finish(std::move(out));
}

MessageBytes encode(const Heard& message) {
  FieldWriter out = begin(MessageType::kHeard);
  out.number(message.export_index);
  out.number(message.generation);
  return finish(std::move(out));
}

MessageBytes encode(const ProvesLess& message) {
  FieldWriter out = begin(MessageType::kProvesLess);
  out.number(message.life_line_flags);
  return finish(std::move(out));
}

std::string check_frame(std::span<const std::byte> bytes, std::size_t descriptors,
                        MessageHeader& header) {
  FieldReader in(bytes);
  header.type = in.number<std::uint16_t>();
  header.version = in.number<std::uint16_t>();
  header.length = in.number<std::uint32_t>();
  if (in.ran_short()) return "A message of " + std::to_string(bytes.size()) + " bytes is too short";
  const Shape shape = shape_of(header.type);
  const std::string name(message_name(header.type));
  if (header.version != kMessageVersion || shape.name.empty()) {
    return "Message type " + std::to_string(header.type) + " (" + name + ") of version " +
           std::to_string(header.version) + " is not known here; this side speaks version " +
           std::to_string(kMessageVersion) + " with types 1 to " +
           std::to_string(static_cast<unsigned>(kLastMessageType));
  }
  if (!shape.available) return "Message \"" + name + "\" is not available yet";
  if (header.length != bytes.size()) {
    return "Message \"" + name + "\" says that it has " + std::to_string(header.length) +
           " bytes and has " + std::to_string(bytes.size());
  }
  if (shape.body_bytes && bytes.size() != kMessageHeaderBytes + *shape.body_bytes) {
    return "Message \"" + name + "\" has " + std::to_string(bytes.size()) + " bytes, not " +
           std::to_string(kMessageHeaderBytes + *shape.body_bytes);
  }
  if (descriptors != shape.descriptors) {
    return "Message \"" + name + "\" came with " + std::to_string(descriptors) +
           " file descriptors, not " + std::to_string(shape.descriptors);
  }
  return {};
}

ErrorCode code_of_wrong(const MessageHeader& header) noexcept {
  const Shape shape = shape_of(header.type);
  const bool is_reserved =
      header.version == kMessageVersion && !shape.name.empty() && !shape.available;
  return is_reserved ? ErrorCode::kNotAvailableYet : ErrorCode::kBadArgument;
}

bool decode(std::span<const std::byte> bytes, Hello& message) {
  FieldReader in = body(bytes);
  message.ledger_version = in.number<std::uint32_t>();
  message.incarnation = read_incarnation(in);
  message.life_line_flags = in.number<std::uint32_t>();
  return in.finished() && message.incarnation != Incarnation{} &&
         (message.life_line_flags & ~life_line::kKnownFlags) == 0;
}

bool decode(std::span<const std::byte> bytes, Welcome& message) {
  FieldReader in = body(bytes);
  message.lease_number = in.number<std::uint32_t>();
  message.incarnation = read_incarnation(in);
  message.life_line_flags = in.number<std::uint32_t>();
  message.capacities.exports = in.number<std::uint32_t>();
  message.capacities.pieces = in.number<std::uint32_t>();
  message.capacities.claims = in.number<std::uint32_t>();
  message.capacities.timelines = in.number<std::uint32_t>();
  const Capacities& sizes = message.capacities;
  return in.finished() && sizes.exports > 0 && sizes.exports <= protocol::kMaxExportIndex + 1 &&
         sizes.pieces > 0 && sizes.timelines > 0 && sizes.claims > 0 &&
         sizes.claims % protocol::kGroupClaims == 0 &&
         (message.life_line_flags & ~life_line::kKnownFlags) == 0;
}

bool decode(std::span<const std::byte> bytes, Refused& message) {
  FieldReader in = body(bytes);
  const auto code = in.number<std::uint16_t>();
  message.text = in.text();
  if (!in.finished() || !known_code(code)) return false;
  message.code = static_cast<ErrorCode>(code);
  return true;
}

bool decode(std::span<const std::byte> bytes, Decline& message) {
  FieldReader in = body(bytes);
  message.export_index = in.number<std::uint32_t>();
  message.generation = in.number<std::uint64_t>();
  return in.finished() && can_be(message.export_index, message.generation);
}

bool decode(std::span<const std::byte> bytes, Forward& message) {
  FieldReader in = body(bytes);
  message.request = in.number<std::uint64_t>();
  message.slot = in.number<std::uint32_t>();
  message.export_index = in.number<std::uint32_t>();
  message.generation = in.number<std::uint64_t>();
  message.offset_bytes = in.number<std::uint64_t>();
  message.size_bytes = in.number<std::uint64_t>();
  message.consumers = in.number<std::uint32_t>();
  message.time_limit_ms = in.number<std::uint64_t>();
  for (std::size_t i = 0; i < 2; ++i) {
    message.timeline[i] = in.number<std::uint32_t>();
    message.number[i] = in.number<std::uint64_t>();
  }
  const auto lost = in.number<std::uint16_t>();
  const auto count = in.number<std::uint16_t>();
  if (lost > 1 || count > protocol::kMostUpstream) return false;
  message.also_lost = lost == 1;
  message.also_behind.resize(count);
  for (TimelinePoint& point : message.also_behind) {
    point.owner = in.number<std::uint32_t>();
    point.index = in.number<std::uint32_t>();
    point.number = in.number<std::uint64_t>();
  }
  return in.finished() && can_be(message.export_index, message.generation);
}

bool decode(std::span<const std::byte> bytes, Forwarded& message) {
  FieldReader in = body(bytes);
  message.request = in.number<std::uint64_t>();
  message.export_index = in.number<std::uint32_t>();
  message.generation = in.number<std::uint64_t>();
  return in.finished() && can_be(message.export_index, message.generation);
}

bool decode(std::span<const std::byte> bytes, AskTimelines& message) {
  FieldReader in = body(bytes);
  message.request = in.number<std::uint64_t>();
  message.lease_number = in.number<std::uint32_t>();
  return in.finished();
}

bool decode(std::span<const std::byte> bytes, GivenTimelines& message) {
  FieldReader in = body(bytes);
  message.request = in.number<std::uint64_t>();
  message.life_line_flags = in.number<std::uint32_t>();
  return in.finished() && (message.life_line_flags & ~life_line::kKnownFlags) == 0;
}

bool decode(std::span<const std::byte> bytes, AskedInVain& message) {
  FieldReader in = body(bytes);
  message.request = in.number<std::uint64_t>();
  const auto code = in.number<std::uint16_t>();
  message.text = in.text();
  if (!in.finished() || !known_code(code)) return false;
  message.code = static_cast<ErrorCode>(code);
  return true;
}

bool decode(std::span<const std::byte> bytes, TakeBack& message) {
  FieldReader in = body(bytes);
  message.export_index = in.number<std::uint32_t>();
  message.generation = in.number<std::uint64_t>();
  return in.finished() && can_be(message.export_index, message.generation);
}

bool decode(std::span<const std::byte> bytes, Heard& message) {
  FieldReader in = body(bytes);
  message.export_index = in.number<std::uint32_t>();
  message.generation = in.number<std::uint64_t>();
  return in.finished() && can_be(message.export_index, message.generation);
}

bool decode(std::span<const std::byte> bytes, ProvesLess& message) {
  FieldReader in = body(bytes);
  message.life_line_flags = in.number<std::uint32_t>();
  return in.finished() && (message.life_line_flags & ~life_line::kKnownFlags) == 0;
}

}  // namespace limbo
