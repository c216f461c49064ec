// CRC-32C (Castagnoli; RFC 3720, appendix B.4): finds every change of up to five bits in a
// descriptor of up to 655 bytes, of up to three in longer ones, and every burst of up to 32 bits.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace limbo {

namespace detail {
constexpr std::array<std::uint32_t, 256> crc32c_table() noexcept {
  std::array<std::uint32_t, 256> table{};
  for (std::uint32_t byte = 0; byte < 256; ++byte) {
    std::uint32_t value = byte;
    for (int bit = 0; bit < 8; ++bit) value = (value >> 1) ^ ((value & 1) ? 0x82f6'3b78U : 0U);
    table[byte] = value;
  }
  return table;
}
inline constexpr auto kCrc32cTable = crc32c_table();
}  // namespace detail

[[nodiscard]] constexpr std::uint32_t crc32c(std::span<const std::byte> bytes) noexcept {
  std::uint32_t value = 0xffff'ffffU;
  for (const std::byte byte : bytes) {
    value = detail::kCrc32cTable[(value ^ static_cast<std::uint32_t>(byte)) & 0xff] ^ (value >> 8);
  }
  return ~value;
}

}  // namespace limbo
