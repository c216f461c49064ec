// CRC-32C (Castagnoli; RFC 3720, appendix B.4): finds every change of up to five bits in a
// descriptor of up to 655 bytes, of up to three in longer ones, and every burst of up to 32 bits.
//
// A descriptor is checked at every send and receive: by the processor's own instruction where it has
// one, else eight bytes at a time ("slicing by eight").
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "ipc/byte_fields.h"

namespace limbo {

namespace detail {

// [0] takes a byte on; [n] takes a byte on that n others follow.
using CrcTables = std::array<std::array<std::uint32_t, 256>, 8>;

constexpr CrcTables crc32c_tables() noexcept {
  CrcTables tables{};
  for (std::uint32_t byte = 0; byte < 256; ++byte) {
    std::uint32_t value = byte;
    for (int bit = 0; bit < 8; ++bit) value = (value >> 1) ^ ((value & 1) ? 0x82f6'3b78U : 0U);
    tables[0][byte] = value;
  }
  for (std::size_t after = 1; after < tables.size(); ++after) {
    for (std::uint32_t byte = 0; byte < 256; ++byte) {
      const std::uint32_t before = tables[after - 1][byte];
      tables[after][byte] = tables[0][before & 0xff] ^ (before >> 8);
    }
  }
  return tables;
}
inline constexpr CrcTables kCrc32cTables = crc32c_tables();

[[nodiscard]] inline std::uint32_t crc32c_by_tables(std::span<const std::byte> bytes) noexcept {
  const CrcTables& tables = kCrc32cTables;
  std::uint32_t value = 0xffff'ffffU;
  for (; bytes.size() >= 8; bytes = bytes.subspan(8)) {
    const std::uint64_t eight = load_little<std::uint64_t>(bytes.data()) ^ value;
    const auto part = [&](std::size_t byte) {
      return tables[7 - byte][(eight >> (8 * byte)) & 0xff];
    };
    value =
        ((part(0) ^ part(1)) ^ (part(2) ^ part(3))) ^ ((part(4) ^ part(5)) ^ (part(6) ^ part(7)));
  }
  for (const std::byte byte : bytes) {
    value = tables[0][(value ^ static_cast<std::uint32_t>(byte)) & 0xff] ^ (value >> 8);
  }
  return ~value;
}

#if defined(__x86_64__)
// Only where the processor has SSE 4.2.
[[nodiscard]] __attribute__((target("sse4.2"))) inline std::uint32_t crc32c_by_instruction(
    std::span<const std::byte> bytes) noexcept {
  std::uint64_t eight = 0xffff'ffffU;
  for (; bytes.size() >= 8; bytes = bytes.subspan(8)) {
    eight = __builtin_ia32_crc32di(eight, load_little<std::uint64_t>(bytes.data()));
  }
  auto value = static_cast<std::uint32_t>(eight);
  for (const std::byte byte : bytes) {
    value = __builtin_ia32_crc32qi(value, static_cast<unsigned char>(byte));
  }
  return ~value;
}
#endif

}  // namespace detail

[[nodiscard]] inline std::uint32_t crc32c(std::span<const std::byte> bytes) noexcept {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("sse4.2")) return detail::crc32c_by_instruction(bytes);
#endif
  return detail::crc32c_by_tables(bytes);
}

}  // namespace limbo
