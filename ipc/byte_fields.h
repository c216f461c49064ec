// Fields of fixed width, little endian, written and read one by one: what descriptors and messages
// are made of. The reader never reads past its end; after a short read every further one is short.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

namespace limbo {

// A number in its bytes, the lowest first, at any address.
template <typename Unsigned>
void store_little(std::byte* at, Unsigned value) noexcept {
  static_assert(std::is_unsigned_v<Unsigned>);
  if constexpr (std::endian::native == std::endian::little) {
    std::memcpy(at, &value, sizeof(value));
  } else {
    for (std::size_t byte = 0; byte < sizeof(value); ++byte) {
      at[byte] = static_cast<std::byte>((value >> (8 * byte)) & 0xff);
    }
  }
}

template <typename Unsigned>
[[nodiscard]] Unsigned load_little(const std::byte* at) noexcept {
  static_assert(std::is_unsigned_v<Unsigned>);
  Unsigned value = 0;
  if constexpr (std::endian::native == std::endian::little) {
    std::memcpy(&value, at, sizeof(value));
  } else {
    for (std::size_t byte = 0; byte < sizeof(value); ++byte) {
      value = static_cast<Unsigned>(value | (static_cast<Unsigned>(at[byte]) << (8 * byte)));
    }
  }
  return value;
}

class FieldWriter {
 public:
  // Makes room for that many bytes at once.
  void reserve(std::size_t size_bytes) {
    if (room_.size() < size_bytes) room_.resize(size_bytes);
  }

  template <typename Unsigned>
  void number(Unsigned value) {
    store_little(next(sizeof(value)), value);
  }
  void raw(std::span<const std::byte> bytes) {
    if (!bytes.empty()) std::memcpy(next(bytes.size()), bytes.data(), bytes.size());
  }
  // Its length (16 bits) and its characters; the caller has checked the length.
  void text(std::string_view value) {
    number(static_cast<std::uint16_t>(value.size()));
    raw(std::as_bytes(std::span(value.data(), value.size())));
  }

  // Overwrites a number that was written before as a placeholder.
  void patch_u32(std::size_t at, std::uint32_t value) { store_little(&room_[at], value); }

  [[nodiscard]] std::size_t size() const noexcept { return size_; }
  [[nodiscard]] std::span<const std::byte> view() const noexcept {
    return std::span(room_).first(size_);
  }
  // What was written; the writer is empty then.
  [[nodiscard]] std::vector<std::byte> take() noexcept {
    room_.resize(std::exchange(size_, 0));
    return std::exchange(room_, {});
  }

 private:
  // Where the next `count` bytes go.
  [[nodiscard]] std::byte* next(std::size_t count) {
    if (room_.size() - size_ < count) room_.resize(2 * room_.size() + count);
    return room_.data() + std::exchange(size_, size_ + count);
  }

  std::vector<std::byte> room_;
  std::size_t size_ = 0;  // what of it was written
};

class FieldReader {
 public:
  explicit FieldReader(std::span<const std::byte> bytes) noexcept : rest_(bytes) {}

  template <typename Unsigned>
  [[nodiscard]] Unsigned number() noexcept {
    const auto bytes = raw(sizeof(Unsigned));
    return bytes.empty() ? Unsigned{0} : load_little<Unsigned>(bytes.data());
  }
  // `count` bytes, or none when there are not so many.
  [[nodiscard]] std::span<const std::byte> raw(std::size_t count) noexcept {
    if (count > rest_.size()) {
      short_ = true;
      rest_ = {};
      return {};
    }
    const auto bytes = rest_.first(count);
    rest_ = rest_.subspan(count);
    return bytes;
  }
  [[nodiscard]] std::string text() {
    const auto bytes = raw(number<std::uint16_t>());
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  }

  // Something was asked for that was not there.
  [[nodiscard]] bool ran_short() const noexcept { return short_; }
  // Everything was there and nothing is left.
  [[nodiscard]] bool finished() const noexcept { return !short_ && rest_.empty(); }

 private:
  std::span<const std::byte> rest_;
  bool short_ = false;
};

}  // namespace limbo
