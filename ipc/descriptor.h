// The bytes that travel to a consumer: which export, of which incarnation, and where to reach it.
//
// Layout, version 1: little endian, in this order, nothing between the fields.
//
// | bytes | field                                                                       |
// |-------|-----------------------------------------------------------------------------|
// | 4     | magic "LMBD"                                                                |
// | 4     | version                                                                     |
// | 4     | length of the whole descriptor                                              |
// | 16    | incarnation of the producer (high, low)                                     |
// | 16    | boot id of its machine                                                      |
// | 16    | UUID of the device                                                          |
// | 4, 8  | export: index, generation                                                   |
// | 4,8,8 | first piece: index, generation, size in bytes                               |
// | 4     | number of pieces (1)                                                        |
// | 8, 8  | offset of the shared range from the first piece's base, size; in bytes      |
// | 2x16  | timeline points: owner (4), index (4), number (8)                           |
// | 2 + n | directory of the producer's socket: length, characters                      |
// | 2 + n | the socket's name in it                                                     |
// | 4 + n | `extra`: length, bytes; opaque here                                         |
// | 4     | CRC-32C of everything before                                                |
//
// A descriptor is checked whole before anything is done with it, and then the ledger is believed,
// not the descriptor: bytes from a stranger can produce an error and nothing else.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "ipc/incarnation.h"
#include "ipc/producer.h"
#include "ipc/sharing.h"

namespace limbo {

inline constexpr std::uint32_t kDescriptorVersion = 1;
inline constexpr std::size_t kMaxExtraBytes = 64 * 1024;

struct Descriptor {
  Incarnation producer;
  BootId boot{};
  ExportTicket ticket;
  std::string directory;    // absolute
  std::string socket_name;  // channel_socket_name(producer)
  Bytes extra;
};

// Throws kBadArgument where a part is longer than the layout takes.
[[nodiscard]] Bytes encode_descriptor(const Descriptor& descriptor);

// Throws kBadDescriptor, and nothing else, for whatever encode_descriptor cannot have made.
[[nodiscard]] Descriptor decode_descriptor(ByteSpan bytes);

}  // namespace limbo
