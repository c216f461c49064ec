#include "ipc/descriptor.h"

#include <algorithm>
#include <cstring>

#include "allocator/error.h"
#include "ipc/byte_fields.h"
#include "ipc/channel.h"
#include "ipc/checksum.h"

namespace limbo {
namespace {

constexpr std::uint32_t kMagic = 0x4442'4d4cU;  // "LMBD"
constexpr std::size_t kLengthAt = 8;
constexpr std::size_t kHeaderBytes = 12;
constexpr std::size_t kChecksumBytes = 4;
constexpr std::size_t kMostFixedBytes = 192;  // everything but the two texts and `extra`
constexpr std::size_t kMaxDirectoryBytes = 4095;
constexpr std::size_t kMaxSocketNameBytes = 255;

[[noreturn]] void bad(const std::string& what) {
  throw Error(ErrorCode::kBadDescriptor, "The descriptor " + what + ".",
              "Pass the bytes on exactly as share() returned them.");
}

void write_uuid(FieldWriter& out, const Uuid& uuid) {
  out.raw(std::as_bytes(std::span(uuid.bytes)));
}

template <typename Array>
void read_array(FieldReader& in, Array& array) {
  const auto bytes = in.raw(array.size());
  if (bytes.size() == array.size()) std::memcpy(array.data(), bytes.data(), bytes.size());
}

void write_ticket(FieldWriter& out, const ExportTicket& ticket) {
  write_uuid(out, ticket.device_uuid);
  out.number(ticket.export_index);
  out.number(ticket.generation);
  out.number(ticket.piece_index);
  out.number(ticket.piece_generation);
  out.number(ticket.piece_size_bytes);
  out.number(ticket.piece_count);
  out.number(ticket.offset_bytes);
  out.number(ticket.size_bytes);
  for (const TimelinePoint& point : ticket.points) {
    out.number(point.owner);
    out.number(point.index);
    out.number(point.number);
  }
}

ExportTicket read_ticket(FieldReader& in) {
  ExportTicket ticket;
  read_array(in, ticket.device_uuid.bytes);
  ticket.export_index = in.number<std::uint32_t>();
  ticket.generation = in.number<std::uint64_t>();
  ticket.piece_index = in.number<std::uint32_t>();
  ticket.piece_generation = in.number<std::uint64_t>();
  ticket.piece_size_bytes = in.number<std::uint64_t>();
  ticket.piece_count = in.number<std::uint32_t>();
  ticket.offset_bytes = in.number<std::uint64_t>();
  ticket.size_bytes = in.number<std::uint64_t>();
  for (TimelinePoint& point : ticket.points) {
    point.owner = in.number<std::uint32_t>();
    point.index = in.number<std::uint32_t>();
    point.number = in.number<std::uint64_t>();
  }
  return ticket;
}

void check_ticket(const ExportTicket& ticket) {
  if (ticket.export_index > protocol::kMaxExportIndex) bad("names an export that cannot exist");
  if (ticket.generation > protocol::kMaxGeneration) bad("has a generation out of range");
  if (ticket.piece_count != 1) {
    bad("spans " + std::to_string(ticket.piece_count) + " pieces; this version reads 1");
  }
  if (ticket.size_bytes == 0 || ticket.size_bytes > ticket.piece_size_bytes ||
      ticket.offset_bytes > ticket.piece_size_bytes - ticket.size_bytes) {
    bad("names a range that is not inside its piece");
  }
}

bool has_nul(const std::string& text) {
  return text.find('\0') != std::string::npos;
}

// A socket is named after its producer. Whoever connected to another's socket would have a lease
// there before the two notice that nobody meant the other.
void check_address(const Incarnation& producer, const std::string& directory,
                   const std::string& name) {
  if (directory.empty() || directory[0] != '/' || directory.size() > kMaxDirectoryBytes ||
      has_nul(directory)) {
    bad("has a channel directory that is no absolute path");
  }
  if (name != channel_socket_name(producer)) bad("names a socket that is not its producer's");
}

// Magic, version and length, in the order in which they can be trusted.
void check_frame(ByteSpan bytes) {
  if (bytes.size() < kHeaderBytes + kChecksumBytes) {
    bad("is cut off: it has " + std::to_string(bytes.size()) + " bytes");
  }
  FieldReader header(bytes.first(kHeaderBytes));
  if (header.number<std::uint32_t>() != kMagic) bad("does not begin like one");
  const auto version = header.number<std::uint32_t>();
  if (version != kDescriptorVersion) {
    throw Error(ErrorCode::kBadDescriptor,
                "The descriptor has version " + std::to_string(version) +
                    "; this library reads version " + std::to_string(kDescriptorVersion) + ".",
                "Use the same version of Limbo in both processes.");
  }
  const auto length = header.number<std::uint32_t>();
  if (length != bytes.size()) {
    bad("says that it has " + std::to_string(length) + " bytes and has " +
        std::to_string(bytes.size()));
  }
  FieldReader trailer(bytes.last(kChecksumBytes));
  if (trailer.number<std::uint32_t>() != crc32c(bytes.first(bytes.size() - kChecksumBytes))) {
    bad("was altered: its checksum does not match");
  }
}

}  // namespace

Bytes encode_descriptor(const Descriptor& descriptor) {
  if (descriptor.extra.size() > kMaxExtraBytes) {
    throw Error(ErrorCode::kBadArgument,
                "The extra part has " + std::to_string(descriptor.extra.size()) + " bytes.",
                "At most " + std::to_string(kMaxExtraBytes) + " travel with a descriptor.");
  }
  if (descriptor.directory.size() > kMaxDirectoryBytes ||
      descriptor.socket_name.size() > kMaxSocketNameBytes) {
    throw Error(ErrorCode::kBadArgument,
                "The runtime directory \"" + descriptor.directory + "\" has too long a path.",
                "Set LIMBO_RUNTIME_DIR to a shorter one.");
  }
  FieldWriter out;
  out.reserve(kMostFixedBytes + descriptor.directory.size() + descriptor.socket_name.size() +
              descriptor.extra.size());
  out.number(kMagic);
  out.number(kDescriptorVersion);
  out.number(std::uint32_t{0});
  out.number(descriptor.producer.high);
  out.number(descriptor.producer.low);
  out.raw(std::as_bytes(std::span(descriptor.boot)));
  write_ticket(out, descriptor.ticket);
  out.text(descriptor.directory);
  out.text(descriptor.socket_name);
  out.number(static_cast<std::uint32_t>(descriptor.extra.size()));
  out.raw(descriptor.extra);
  out.patch_u32(kLengthAt, static_cast<std::uint32_t>(out.size() + kChecksumBytes));
  out.number(crc32c(out.view()));
  return out.take();
}

Descriptor decode_descriptor(ByteSpan bytes) {
  check_frame(bytes);
  FieldReader in(bytes.subspan(kHeaderBytes, bytes.size() - kHeaderBytes - kChecksumBytes));
  Descriptor descriptor;
  descriptor.producer.high = in.number<std::uint64_t>();
  descriptor.producer.low = in.number<std::uint64_t>();
  read_array(in, descriptor.boot);
  descriptor.ticket = read_ticket(in);
  descriptor.directory = in.text();
  descriptor.socket_name = in.text();
  const auto extra_bytes = in.number<std::uint32_t>();
  if (extra_bytes > kMaxExtraBytes) bad("has too long an extra part");
  const auto extra = in.raw(extra_bytes);
  if (!in.finished()) bad("has fields that do not fill its length");
  check_ticket(descriptor.ticket);
  check_address(descriptor.producer, descriptor.directory, descriptor.socket_name);
  descriptor.extra.assign(extra.begin(), extra.end());
  return descriptor;
}

}  // namespace limbo
