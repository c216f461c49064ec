// What a lent block holds, so that every reader can tell whether it is still that block.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "allocator/device/device.h"
#include "ipc/sharing.h"

namespace limbo::demo {

// Travels with the descriptor. Every word of the block has `value`, which no other block has.
struct BlockNote {
  std::uint64_t number = 0;  // of the send
  std::uint32_t value = 0;
};

inline Bytes to_bytes(const BlockNote& note) {
  Bytes bytes(sizeof(note.number) + sizeof(note.value));
  std::memcpy(bytes.data(), &note.number, sizeof(note.number));
  std::memcpy(bytes.data() + sizeof(note.number), &note.value, sizeof(note.value));
  return bytes;
}

inline BlockNote note_from(const Bytes& bytes) {
  BlockNote note;
  if (bytes.size() == sizeof(note.number) + sizeof(note.value)) {
    std::memcpy(&note.number, bytes.data(), sizeof(note.number));
    std::memcpy(&note.value, bytes.data() + sizeof(note.number), sizeof(note.value));
  }
  return note;
}

// Copies the block back behind the stream's work and compares every word. Waits for the stream.
inline bool holds_pattern(Device& device, StreamRef stream, const void* data,
                          std::size_t size_bytes, std::uint32_t value) {
  std::vector<std::uint32_t> words(size_bytes / sizeof(value));
  device.copy_to_host(stream, words.data(), data, words.size() * sizeof(value));
  for (const std::uint32_t word : words) {
    if (word != value) return false;
  }
  return true;
}

}  // namespace limbo::demo
